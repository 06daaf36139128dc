// Package backend caches what a backend last said, and answers in its place while the backend is slow or gone.
//
// The cache exists for the lists. A client that does not find an item in a list takes it for deleted, and may remove what is
// left of it. If a list fails, the client can work with no backend at all. So while a backend does not answer, its
// items have to stay in the lists, as they were. A [Backend] stands between the multiplexer and the connection to one backend. It
// answers lists and status calls if the backend does not, and lets everything else pass, or fail at once:
//
//	runtime := backend.Open("beta.io", backend.File{Path: "/var/lib/mux/beta.io.known"})
//	err := runtime.Use(backend.Config{
//		Name: "beta.io", Next: conn, Schema: schema, Package: "library.v1",
//		Spec:   inventory.Spec{Lists: []inventory.List{{List: "List", Stream: "Stream", ID: "id", Gate: true}}},
//	})
//	go runtime.Run(ctx)
//
// [Condition] says what each condition means for a call, and what changes it. Calls to a backend that is gone end with
// Unavailable, because a client may take DeadlineExceeded for a fault of the item that it asked about.
//
// The cache keeps each answer that passes, and asks for those that are old or that a call has changed. Two rules come before all
// others. It never answers with less than a client has seen: see [inventory.Inventory]. And not to know is an error: where the
// cache does not know whether a backend has items, the list fails.
//
// The cache belongs to the backend's name: it outlives the connections to the backend, each of which is a [Link], a handover
// passes it to the next process, and a file keeps it over a crash. All names in it are back names: the director translates them
// after this package.
//
// Where to find what: link.go has the way of a call, list.go, statuses.go and reply.go the three kinds that the cache answers, and
// attempt.go how long they wait for the backend. condition.go, pulse.go and comeback.go decide whether the backend answers. run.go
// asks in the background; file.go and fileform.go write the file.
package backend
