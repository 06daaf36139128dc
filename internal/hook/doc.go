// Package hook lets plugins change or refuse calls. It asks them before a call is
// made and tells them after, over a protocol of their own that says what the call is
// about in messages that hold all there is to know of it.
//
// It knows no API: which calls there are points at, what plugins are told and what
// their answers change is a [Spec], data. [Plugins] stands around a director:
//
//	plugins, err := hook.New(hook.Config{Spec: spec, Schema: schema, Hooks: protocol, Folder: "/etc/runtime/hookserver.d"})
//	cfg.Around = plugins.Around
//	d, err := director.New(cfg)
//	go plugins.Run(ctx)
//
// # How a plugin is asked
//
// Each file of the folder is a plugin. Plugins at one point are asked in the order of
// their file names, and each is told what those before it made of the call. What they
// want to be otherwise is then changed in the request, on the wire: bytes that no
// plugin changed reach the runtime as they came, and an answer that is an echo changes
// nothing.
//
// A plugin that fails, that does not answer in time or answers nonsense is left out,
// or the call is refused, as its file says. No answer and no request can do more
// harm than that.
//
// # What plugins are told
//
// Most calls name a thing by its id alone. What was said of it when it was made is
// remembered by that id until it is removed. What was not seen being made is looked
// up.
package hook
