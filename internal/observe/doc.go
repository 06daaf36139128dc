// Package observe is the wing of what people and programs see: calls as events, in memory and in files; calls put
// together again from events; the page, the metrics and the admin socket. Nothing here changes a call.
//
// Comes in: imports from the wings proxy, which feeds it, and command, which prints what it has.
// Goes out: imports of base, memory, settings and hook, and of codec and director, whose calls it traces.
package observe
