// Package inventory holds the lists of one backend, and the statuses of their items.
//
// An [Inventory] is a plain value. It has no clock, no network and no lock: its owner calls one method at a time, and
// says what time it is. It gets each answer of the backend, and each call that may have changed something there:
//
//	plan, err := inventory.Compile(spec, schema, "library.v1", nil)
//	inv := inventory.New()
//	err = inv.Use(plan)
//	books := inv.List(plan.Lists[0])
//	seq := inv.Begin()                            // a request for the whole list
//	books.Observe(seq, at, answer)                // its answer
//	inv.Note(plan, call, now)                     // a call that has created or removed a book
//	answer, err := inv.View().Answer(plan.Lists[0], request)
//
// The invariant: an answer of the inventory is never older than one that a client had before. So each request has a
// number, each change by a call has the number of the latest request before it, and an answer counts only for what
// happened before its request.
//
// Three forms of the same lists serve three purposes:
//
//   - A [Listing] takes in answers and calls. Its owner guards it.
//   - A [View] is all lists at one instant, for everyone else. It never changes.
//   - [Saved] is a list for the next process, which may have another [Plan].
//
// A [Spec] is what people write about the lists of an API. [Compile] turns it into a Plan, which reads items, names and
// filters on the wire, without decoding messages.
package inventory
