package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// Demo is the subcommand that shows criproxy at work on two runtimes in memory.
func Demo(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("demo")
	var o demoOptions
	fs.BoolVar(&o.Once, "once", false, "exit after the session")
	fs.BoolVar(&o.Idle, "idle", false, "keep running, without pods and traffic")
	outage := fs.String("outage", "", "stop the runtime called `NAME`, start it again, and show what a client sees; the only NAME is "+demoBackend)
	about := `demo runs two runtimes in memory, criproxy in front of them, and a client that prints what it sees.
It needs no setup and leaves no files behind. It keeps running, with two pods and a little traffic,
until Ctrl-C.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	if o.Outage = *outage != ""; o.Outage && *outage != demoBackend {
		return &UsageError{fmt.Errorf("demo: -outage %s: the only name is %s%s", *outage, demoBackend, suggest.Nearest(*outage, []string{demoBackend}))}
	}
	return runDemo(ctx, o, out, errOut)
}
