package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/page"
)

// UI is the subcommand that shows a running criproxy in a browser.
func UI(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("ui")
	var asked nodeFlags
	asked.flags(fs)
	asked.ofPods(fs)
	address := fs.String("listen", "127.0.0.1:0", "the loopback `ADDRESS` to which the browser connects; port 0 chooses a free one")
	var schema schemaFlags
	schema.flags(fs)
	about := `ui shows the calls, pods and status of a running criproxy in a browser on this machine, until Ctrl-C. Of several
nodes, it shows the condition of each runtime, and leads to the page of each node. After POD, it shows only the
nodes of these pods, and their calls.`
	if err := parseSub(fs, args, out, about, 0, anyNumber); err != nil {
		return err
	}
	l, err := page.Listen(*address)
	if err != nil {
		return &UsageError{fmt.Errorf("ui: %w", err)}
	}
	defer l.Close() // the server has closed it, if there was one
	pods, err := asked.pods(ctx, fs.Args(), errOut)
	if err != nil {
		return err
	}
	var names []string
	for _, pod := range pods {
		names = append(names, path.Base(pod)) // without the namespace
	}
	fragment := ""
	if len(names) > 0 {
		fragment = url.Values{"pod": {strings.Join(names, "|")}}.Encode()
	}
	nodes, err := asked.chosen(ctx)
	if err != nil {
		return err
	}
	open := func() page.Config {
		return page.Config{Admin: nodes[0].Address, Open: func(h *capture.FileHeader) (*calls.Printer, *calls.Assembler, error) {
			shown := callView{schema: schema}
			if err := shown.open(h, io.Discard); err != nil {
				return nil, nil, err
			}
			return &shown.printer, shown.assembler, nil
		}}
	}
	var site *page.Site
	if len(nodes) == 1 && nodes[0].Err == nil {
		site = page.New(open(), l)
	} else {
		site = page.NewFleet(page.FleetConfig{Page: open, Fragment: fragment, List: asked.nodes, Timeout: time.Duration(asked.timeout),
			Ask: func(ctx context.Context, n admin.Node) (*admin.Report, time.Duration, error) {
				var r admin.Report
				client := admin.NewClient(n.Address)
				_, err := client.Read(ctx, "status", &r)
				return &r, client.ClockOff(), err
			}}, l)
		fragment = ""
	}
	if fragment != "" {
		fragment = "#" + fragment
	}
	fmt.Fprintf(out, "Open this link in a browser. It works once:\n\n  %s\n\nThe page is served until Ctrl-C. To open it from another machine, first run there: ssh -L %[2]s:127.0.0.1:%[2]s HOST\n", site.URL()+fragment, site.Port())
	return site.Serve(ctx, l)
}
