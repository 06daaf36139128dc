package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/page"
)

// UI is the subcommand that shows a running criproxy in a browser.
func UI(ctx context.Context, args []string, out, _ io.Writer) error {
	fs := subFlags("ui")
	var asked nodeFlags
	asked.flags(fs)
	address := fs.String("listen", "127.0.0.1:0", "the loopback `ADDRESS` to which the browser connects; port 0 chooses a free one")
	var schema schemaFlags
	schema.flags(fs)
	about := "ui shows the calls, pods and status of a running criproxy in a browser on this machine, until Ctrl-C."
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	l, err := page.Listen(*address)
	if err != nil {
		return &UsageError{fmt.Errorf("ui: %w", err)}
	}
	defer l.Close() // the server has closed it, if there was one
	socket, err := asked.one(ctx)
	if err != nil {
		return err
	}
	server := page.New(page.Config{Admin: socket, Open: func(h *capture.FileHeader) (*calls.Printer, *calls.Assembler, error) {
		shown := callView{schema: schema}
		if err := shown.open(h, io.Discard); err != nil {
			return nil, nil, err
		}
		return &shown.printer, shown.assembler, nil
	}}, l)
	fmt.Fprintf(out, "Open this link in a browser. It works once:\n\n  %s\n\nThe page is served until Ctrl-C. To open it from another machine, first run there: ssh -L %[2]s:127.0.0.1:%[2]s HOST\n", server.URL(), server.Port())
	return server.Serve(ctx, l)
}
