// Package fakecri is a container runtime that runs nothing: it keeps pods,
// containers and images in memory and speaks the Container Runtime Interface
// about them as containerd 2 does.
//
//	rt := fakecri.New(fakecri.Config{Name: "alpha", Seed: 1})
//	err := rt.Serve(ctx, "/run/alpha.sock")
//
// `criproxy demo` puts it behind the proxy, and tests compare the proxy with it: they read what a
// [Runtime] holds ([Runtime.Pods]) and which calls it got ([Runtime.Calls]), and make it fail
// ([Runtime.Fault]).
//
// runtime.go has what a runtime holds; each service of CRI is methods on that, in files by what they
// are about: pods.go, containers.go, images.go, events.go. serve.go and register.go put them at a
// socket, and faults.go around each call.
//
// # What is as in containerd
//
// Ids are 64 hex digits, and any unique beginning of one names the thing, in
// requests and in filters. An ambiguous beginning is an error, and not NotFound.
// Stopping or removing what is not there succeeds. Metadata names a thing as well:
// a second pod or container of the same name is refused until the first is removed.
// ListImages ignores its filter. Containers need their image to be pulled; every
// image can be pulled.
//
// # What is not
//
// Commands in containers are a handful that are built in, logs have what [Runtime.Print]
// prints, and every port of a pod answers HTTP: [Runtime.ServeStreams] serves them to crictl.
//
// Lists come in the order of creation, not in a random one. No event is lost,
// and no subscriber waits for another.
package fakecri
