package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Dump is the subcommand that saves what a running criproxy has recorded.
func Dump(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	fs := subFlags("dump")
	asked := nodeFlags{timeout: unitDuration(5 * time.Minute)}
	asked.flags(fs)
	var schema schemaFlags
	schema.flags(fs)
	var within span
	within.flags(fs)
	if err := cmp.Or(parseSub(fs, args, out, `dump FILE saves the latest calls, which a running criproxy keeps in memory, in FILE.jsonl, .pcapng or
.binlog, which must not exist yet; with .zst behind that, as in FILE.jsonl.zst, the file is compressed. Without FILE it prints them, as JSON lines. Of several
nodes, each has its own FILE, with the node's name before the first dot.`, 0, 1), within.check("dump")); err != nil {
		return err
	}
	since, until := time.Duration(within.since), time.Duration(within.until)
	chosen := within.before(time.Now())
	path := fs.Arg(0)
	format := capture.JSONL
	if path != "" {
		if format, err = capture.FormatOf(path); err != nil {
			return &UsageError{fmt.Errorf("dump: %w", err)}
		}
	}
	if file, ok := out.(*os.File); ok && path == "" && term.IsTerminal(int(file.Fd())) {
		return &UsageError{errors.New("dump: JSON lines are not for a terminal; want a FILE, such as calls.jsonl.zst, or a pipe, as in criproxy dump | criproxy view -")}
	}
	nodes, err := asked.chosen(ctx)
	if err != nil {
		return err
	}
	save := func(ctx context.Context, n admin.Node, path string) error {
		client := admin.NewClient(n.Address)
		asks := url.Values{}
		if since > 0 {
			askSince(asks, since)
		}
		if until > longCall {
			asks.Set("until", (until - longCall).String())
		}
		response, err := client.Get(ctx, "/events?"+asks.Encode())
		if err != nil {
			return err
		}
		defer response.Body.Close()
		r, err := capture.NewReader(response.Body)
		if err != nil {
			return err
		}
		which := chosen.by(client.ClockOff())
		if n.Name != "" {
			r.Header().Node = n.Name
		}
		count, err := copyCapture(r, &schema, format, path, out, which.has)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("the criproxy at %s ended while it sent its calls, as in a handover; only its first calls, %s, are in %s: dump again, into another file",
				n.Address, capture.Count(count, "event"), cmp.Or(path, "the output"))
		case err == nil && path != "":
			fmt.Fprintf(errOut, "criproxy: %s in %s\n", capture.Count(count, "event"), path)
		}
		return err
	}
	switch {
	case !asked.several():
		return save(ctx, nodes[0], path)
	case path == "" && len(nodes) > 1:
		return &UsageError{fmt.Errorf("dump: the calls of %d nodes do not fit into one stream; want a FILE, such as calls.jsonl.zst, for files such as calls-%s.jsonl.zst", len(nodes), nodes[0].Name)}
	}
	return admin.UnansweredBy(admin.EachNode(ctx, nodes, time.Duration(asked.timeout), errOut, func(ctx context.Context, i int) error {
		to := path
		if path != "" {
			to = fileOfNode(path, nodes[i].Name)
		}
		return save(ctx, nodes[i], to)
	}))
}

// span has the flags -since and -until.
type span struct{ since, until unitDuration }

func (s *span) flags(fs *flag.FlagSet) {
	fs.Var(&s.since, "since", "only calls that began in the last `TIME`, such as 5m")
	fs.Var(&s.until, "until", "only calls that began before the last `TIME`, such as 1m")
}

// check returns an error if the flags are invalid.
func (s *span) check(command string) error {
	if s.since < 0 || s.until < 0 || s.since > 0 && s.until >= s.since {
		return &UsageError{fmt.Errorf("%s: -since and -until say how long ago: they cannot be negative, and -since must be longer ago than -until", command)}
	}
	return nil
}

// before returns the choice of the calls that the flags select, if they are about the time before now.
func (s *span) before(now time.Time) *choice {
	c := &choice{}
	if s.since > 0 {
		c.from = now.Add(-time.Duration(s.since))
	}
	if s.until > 0 {
		c.before = now.Add(-time.Duration(s.until))
	}
	return c.by(0)
}

// choice selects the events of calls that began in a time.
type choice struct {
	from, before time.Time       // zero for no bound
	calls        map[uint64]bool // :: call → whether it is selected
}

// by returns the same choice for events of a node whose clock is ahead by so much.
func (c choice) by(off time.Duration) *choice {
	for _, t := range []*time.Time{&c.from, &c.before} {
		if !t.IsZero() {
			*t = t.Add(off)
		}
	}
	c.calls = map[uint64]bool{}
	return &c
}

// has reports whether to keep an event: by its own time, or by that of the first event of its call.
func (c *choice) has(ev *capture.Event) bool {
	in := !ev.Time.Before(c.from) && (c.before.IsZero() || ev.Time.Before(c.before))
	if ev.Kind == capture.Missed || ev.Kind == capture.Changed {
		return in
	}
	again := ev.Kind == capture.Start && ev.Leg == 0 && !ev.Again // another recording, after the first, counts from 1 as well
	if first, known := c.calls[ev.Call]; known && !again {
		return first
	}
	c.calls[ev.Call] = in
	return in
}

// copyCapture writes the events of a reader to the file at path, or to out if path is empty. It returns how many events
// it wrote. It leaves out events for which has is false; a nil has keeps all.
func copyCapture(r *capture.Reader, flags *schemaFlags, format capture.Format, path string, out io.Writer, has func(*capture.Event) bool) (n int, err error) {
	_, schema, err := flags.load(r.Header().Descriptors)
	if err != nil {
		return 0, err
	}
	if path != "" {
		file, fails := createFile(path)
		if fails != nil {
			return 0, fails
		}
		packed, fails := capture.Packed(file, path)
		if fails != nil {
			return 0, errors.Join(fails, file.Close())
		}
		defer func() { err = errors.Join(err, packed.Close(), file.Close()) }()
		out = packed
	}
	err = capture.WriteTo(out, format, r.Header(), schema, func(ev *capture.Event) error {
		for {
			err := r.Next(ev)
			if err == nil && has != nil && !has(ev) {
				continue
			}
			if err == nil {
				n++
			}
			return err
		}
	})
	return n, err
}
