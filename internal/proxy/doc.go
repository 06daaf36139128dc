// Package proxy is the wing of the process that serves. listen opens the sockets, limits bounds what clients use, and cri
// has the names of CRI's methods. daemon says which client may call what; it assembles a proxy, runs it, reloads it, and
// hands it over to the next process.
//
// Comes in: imports from the wing command.
// Goes out: imports of all wings below, and of director and criadapter.
package proxy
