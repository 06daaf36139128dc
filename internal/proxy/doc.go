// Package proxy is the wing of the process that serves: its sockets and their limits, which client may call what, and
// the daemon, which assembles a proxy, runs it, reloads it, and hands it over to the next process.
//
// Comes in: imports from the wing command.
// Goes out: imports of all wings below, and of director and criadapter.
package proxy
