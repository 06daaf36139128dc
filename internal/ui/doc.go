// Package ui serves the page of internal/report live: calls as they come from the admin socket of a
// running criproxy, and how it is doing.
//
//	server := ui.New(ui.Config{Admin: socket, Open: open})
//	fmt.Println(server.URL(listener.Addr()))
//	err := server.Serve(ctx, listener)
//
// One goroutine follows the admin socket into a [history] that is bounded; any number of browsers
// read from there, each at its own pace. The page is for one person: whoever has the link may look, once.
package ui
