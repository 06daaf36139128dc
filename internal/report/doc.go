// Package report shows calls in a browser: a table, the pods as swim lanes, latency, which client
// calls which backend, and each call with both of its legs.
//
//	w := report.NewWriter(file, printer)
//	for each call that has ended {
//		w.Add(call)
//	}
//	err := w.Close(report.Info{Title: "calls.jsonl"})
//
// A [Writer] makes one file with all that is needed; nothing in it asks the network. [Live] is the
// same page for a server that sends it calls. The recorded calls stand in the page as compressed
// data, never as HTML, and a policy in the page allows no script but its own.
package report
