// Package plugins lets plugins change or refuse calls. It asks them before a call, and notifies them
// after it. The protocol between it and a plugin has messages that describe the pod or container
// that the call is about.
//
// The package knows no API. A [Spec], which is data, says which calls have points for plugins,
// which messages plugins get, and which fields their answers change. [Plugins] wraps a director:
//
//	p, err := plugins.New(plugins.Config{Spec: spec, Schema: schema, Hooks: protocol, Folder: "/etc/runtime/hookserver.d"})
//	cfg.Around = p.Around
//	d, err := director.New(cfg)
//	go p.Run(ctx)
//
// # How the package asks a plugin
//
// Each file in the folder registers a plugin. The package asks the plugins at a point in the order
// of their file names, and each sees the changes of those before it. It then makes the changes in
// the request, on the wire: bytes that no plugin changed reach the runtime as they came, and an
// answer that is an echo changes nothing.
//
// If a plugin fails, does not answer in time or sends a malformed answer, the call goes on without
// it or is refused, as the plugin's file says. No answer and no request can do more harm than that.
//
// # What plugins get
//
// Most calls name an object by its id alone. The package remembers the request that created an
// object, by the object's id, until the object is removed. It asks the runtime about objects that
// were created before the package saw calls.
//
// # Where to read on
//
// visit.go follows a call: around.Call finds out which object the call is about (facts.go,
// learn.go), asks the plugins before the call and notifies them after it (ask.go), and patches the
// request (change.go). plugins.go makes the table of plugins from the files (folder.go, file.go).
// connection.go connects to one plugin, and condition.go reports when it can be asked, and when it
// cannot. compile.go checks the Spec, once, and makes a program of it.
package plugins
