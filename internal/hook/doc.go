// Package hook lets plugins change or refuse calls. It asks them before a call and calls them
// after it, over their own protocol, whose messages describe the pod or container that the call
// is about.
//
// It knows no API: a [Spec], which is data, says at which calls there are points, which messages
// plugins get, and which fields their answers change. [Plugins] stands around a director:
//
//	plugins, err := hook.New(hook.Config{Spec: spec, Schema: schema, Hooks: protocol, Folder: "/etc/runtime/hookserver.d"})
//	cfg.Around = plugins.Around
//	d, err := director.New(cfg)
//	go plugins.Run(ctx)
//
// # How a plugin is asked
//
// Each file of the folder is a plugin. Plugins at one point are asked in the order of
// their file names, and each sees the changes of those before it. The changes are then made in
// the request, on the wire: bytes that no plugin changed reach the runtime as they came, and an
// answer that is an echo changes nothing.
//
// If a plugin fails, does not answer in time or answers nonsense, the call goes on without it or
// is refused, as the plugin's file says. No answer and no request can do more harm than that.
//
// # What plugins get
//
// Most calls name a thing by its id alone. The package remembers, by that id, what the call that
// made the thing said of it, until the thing is removed. It asks the runtime about things that
// were made before it was there.
//
// # Where to read on
//
// visit.go has the way of a call: around.Invoke finds out what it is about (facts.go, learn.go),
// asks the plugins before it and calls them after it (ask.go), and patches the request (change.go).
// plugins.go makes the table of plugins of the files (folder.go, file.go); connection.go is the way
// to one of them. compile.go makes a program of the Spec, which is checked once.
package hook
