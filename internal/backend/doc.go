// Package backend remembers what a backend last said, and answers in its place while the backend is slow or gone.
//
// If a list lacks an item, a client believes that the item is gone, and may remove its parts. If a list fails, the client
// cannot work with any backend. A [Backend] stands between the multiplexer and the connection to one backend. It keeps the backend's
// items in the lists, answers status calls, and lets everything else pass, or fail at once:
//
//	runtime := backend.Open("beta.io", backend.File{Path: "/var/lib/mux/beta.io.known"})
//	err := runtime.Use(backend.Config{
//		Name: "beta.io", Conn: conn, Schema: schema, Package: "library.v1",
//		Spec:   inventory.Spec{Lists: []inventory.List{{List: "List", Stream: "Stream", ID: "id", Gate: true}}},
//	})
//	go runtime.Run(ctx)
//
// It answers the lists, statuses and kept replies of a backend that is slow; all other calls go to the backend as usual.
// Calls to a backend that is gone end with Unavailable, because a client may take DeadlineExceeded for a fault of the item
// that it asked about. [Condition] has the table of all changes.
//
// It caches each answer that passes, and asks for those that are old or that a call has changed. It never answers with
// less than a client has seen: see [inventory.Inventory]. Where it does not know whether a backend has items, the list fails.
// It belongs to the backend's name: it outlives the connections to the backend, each of which is a [Link], a handover passes it
// to the next process, and a file keeps it over a crash. All names in it are back names: the director translates them after this package.
package backend
