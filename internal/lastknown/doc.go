// Package lastknown remembers what a backend last said, and answers for it while it
// is gone.
//
// A list that is short of a backend's items makes kubelet kill what it does not
// see there, and a list that fails stops the pods of every other backend. So a
// [Conn], which stands between the multiplexer and the connection to one
// backend, keeps the items of a backend that is down in the lists, answers status
// calls from what is known, and lets everything else fail at once:
//
//	conn, err := known.New(known.Config{
//		Name: "beta.io", Conn: backend, Schema: schema, Package: "library.v1",
//		Lists: []known.List{{List: "List", Stream: "Stream", ID: "id", Gate: true}},
//		File:  "/var/lib/mux/beta.io.known",
//	})
//	go conn.Run(ctx)
//
// # When a backend is down
//
// It goes down when it cannot be reached, and when a gate list fails or takes
// longer than its budget. Then all calls under way on it end with Unavailable: as
// DeadlineExceeded kubelet would count them as failed probes. It comes up when
// all gate lists have been answered completely, and from that answer on.
//
// # What is known
//
// What passes by is kept. What did not pass for a while, or has been changed by a
// call, is asked for. It is never older than what a client was told, and survives
// a restart of this process in a file. Names are back names: this package stands
// behind the border.
package lastknown
