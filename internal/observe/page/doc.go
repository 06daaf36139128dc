// Package page shows calls in a browser: a table, the pods as swim lanes, latency, which client
// calls which backend, and each call with both of its legs.
//
//	w := page.NewWriter(file, printer)
//	for each call that has ended {
//		w.Add(call)
//	}
//	err := w.Close(page.Info{Title: "calls.jsonl"})
//
// A [Writer] makes one self-contained file, which makes no requests. [Live] returns the same page for a
// server that sends it calls. The page contains the recorded calls as compressed data, never as HTML, and
// a policy in it allows no script but its own.
package page
