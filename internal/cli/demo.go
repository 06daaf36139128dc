package cli

import (
	"context"
	"io"

	"github.com/criproxy/criproxy/internal/demo"
)

// Demo is the subcommand that shows criproxy at work on two runtimes in memory.
func Demo(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("demo")
	once := fs.Bool("once", false, "exit after the session")
	about := `demo runs two runtimes in memory, the proxy in front of them, and a client that prints what it
sees. It needs nothing and leaves nothing, and stays up until Ctrl-C.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	return demo.Run(ctx, *once, out, errOut)
}
