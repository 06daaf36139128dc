// Package memory remembers what a backend last said, and answers in its place while the
// backend is slow or gone.
//
// A client takes what a list lacks for gone, and may remove what is left of it; a list that fails
// stops its work on every other backend, too. A [Conn] stands between the multiplexer and the connection to one backend. It keeps
// the backend's items in the lists, answers status calls from its [Memory], and lets everything
// else pass, or fail at once:
//
//	remembered := memory.Open("beta.io", memory.File{Path: "/var/lib/mux/beta.io.known"})
//	conn, err := memory.New(memory.Config{
//		Name: "beta.io", Conn: backend, Schema: schema, Package: "library.v1",
//		Spec:   inventory.Spec{Lists: []inventory.List{{List: "List", Stream: "Stream", ID: "id", Gate: true}}},
//		Memory: remembered,
//	})
//	go conn.Run(ctx)
//
// # Up, slow and gone
//
// A backend is slow while one of its lists, statuses or kept replies takes longer than Budget, or
// one of its lists is an error twice in a row. Memory answers those calls; all others go to the
// backend as usual. A backend is gone when its connection is refused or ends, when it has answered
// nothing for Silence, or when it answers every call with an error. Then the calls under way end
// with Unavailable, because a client may take DeadlineExceeded for a fault of the item that it
// asked about. [Condition] has the table of all changes.
//
// # What memory says
//
// A memory keeps each answer that passes, and asks for those that are old or that a call has
// changed. It shows what clients have created or removed since, whatever the backend's lists do.
// It never answers with less than a client has seen. Where it does not know whether a backend has
// items, the list fails.
//
// A memory belongs to the backend's name. It outlives the connections to the backend, a handover
// passes it to the next process, and a file keeps it over a crash. All names in it are back
// names: the director translates them after this package.
package memory
