// Command bench measures the cost of a proxy between kubelet and a runtime: criproxy in several
// configurations, and the alternatives to it. Its own runtimes answer from memory, so that it measures little
// but the proxy.
//
//	go run ./bench -out ../docs/evidence/performance.md
//	go run ./bench soak -for 1h                    # criproxy under the calls of a kubelet
//	go run ./bench record -out kubelet.pcapng.gz   # the calls of a real kubelet, to a file
//
// Figures can be compared within a run: in each round, every contender gets the same time, in a new order.
// Do not compare times of different runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	rounds   int
	time     time.Duration
	only     string
	among    string
	out      string
	json     string
	criproxy string
}

func main() {
	// Parts of a measurement that need their own process.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "backend":
			exit(serveBackend(os.Args[2:]))
		case "stock":
			exit(serveStock(os.Args[2:]))
		case "fake":
			exit(serveFake(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command, args := run, os.Args[1:]
	if len(args) > 0 {
		switch args[0] {
		case "soak":
			command, args = runSoak, args[1:]
		case "record":
			command, args = runRecord, args[1:]
		}
	}
	err := command(ctx, args, os.Stdout, os.Stderr)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&o.rounds, "rounds", 7, "how many turns each contender gets at each work")
	fs.DurationVar(&o.time, "time", time.Second, "how long a turn is")
	fs.StringVar(&o.only, "only", "", "measure only what matches this `REGEXP`: works, \"merging\", \"cold start\", \"memory\", \"a real kubelet\"")
	fs.StringVar(&o.among, "among", "", "measure only the contenders that match this `REGEXP`")
	fs.StringVar(&o.out, "out", "", "the Markdown file between whose marks the tables go; its plot goes beside it")
	fs.StringVar(&o.json, "json", "", "a file for all figures, for programs")
	fs.StringVar(&o.criproxy, "criproxy", "", "the criproxy to measure; built from this checkout if empty")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || o.rounds < 1 || o.time <= 0 {
		return fmt.Errorf("want only flags, at least one round, and a positive time; got %q", args)
	}
	dir, err := os.MkdirTemp("", "bench") // short, for sockets
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h := &harness{options: o, dir: dir, progress: progress}
	r, err := h.all(ctx)
	if err != nil {
		if len(r.figures) > 0 {
			fmt.Fprint(out, "The run has failed. This is what was measured until then, for no file:\n\n")
			r.markdown(out)
		}
		return err
	}
	return r.write(o, out)
}
