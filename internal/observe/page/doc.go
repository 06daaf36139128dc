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
//
// A [Site] serves the page live: with the calls of a running criproxy as they come from its admin socket,
// and with its status.
//
//	server := page.New(page.Config{Admin: socket, Open: open}, listener)
//	fmt.Println(server.URL())
//	err := server.Serve(ctx, listener)
//
// One goroutine reads the admin socket into a bounded [history]; browsers read from the history, each
// at its own pace. The link works once, for the first browser that opens it.
package page
