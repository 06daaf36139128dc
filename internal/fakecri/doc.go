// Package fakecri is a container runtime that runs no containers. It keeps pods, containers and
// images in memory, and answers calls of the Container Runtime Interface as containerd 2 does.
//
//	rt := fakecri.New(fakecri.Config{Name: "alpha", Seed: 1})
//	l, err := net.Listen("unix", "/run/alpha.sock")
//	err = rt.ServeOn(ctx, l)
//
// `criproxy demo` runs it behind the proxy. Tests compare the proxy with it: they read what a
// [Runtime] holds ([Runtime.Pods]) and which calls it got ([Runtime.Calls]), and make calls fail
// ([Runtime.Fault]).
//
// runtime.go holds the state of a runtime. The methods of CRI's services are in files by subject:
// pods.go, containers.go, images.go, events.go. serve.go and register.go serve them on a socket, and
// faults.go injects faults.
//
// # Like containerd
//
// Ids are 64 hex digits. In requests and filters, any unique beginning of an id stands for it; an
// ambiguous beginning is an error other than NotFound. Stopping or removing an object that does not
// exist succeeds. Names are reserved: a second pod or container with the same metadata is refused
// until the first is removed. ListImages ignores its filter. A container can be created only after
// its image has been pulled; every image can be pulled.
//
// # Unlike containerd
//
// Containers have only a few built-in commands, which ExecSync runs. Logs hold what [Runtime.Print]
// prints. Exec, Attach and PortForward return a URL, but no process listens there.
//
// Lists are in order of creation. No event is lost, and no subscriber waits for another.
package fakecri
