// Package ui serves the page of internal/observe/page live: with the calls of a running criproxy as they come
// from its admin socket, and with its status and metrics.
//
//	server := ui.New(ui.Config{Admin: socket, Open: open}, listener)
//	fmt.Println(server.URL())
//	err := server.Serve(ctx, listener)
//
// One goroutine reads the admin socket into a bounded [history]; browsers read from the history, each
// at its own pace. The link works once, for the first browser that opens it.
package ui
