package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
)

// Tail is the subcommand that shows calls as they happen.
func Tail(ctx context.Context, args []string, out, errOut io.Writer) error {
	l := &callView{}
	fs := subFlags("tail")
	l.flags(fs, errOut)
	var asked nodeFlags
	asked.flags(fs)
	all := fs.Bool("past", false, "also show all calls recorded so far")
	last := fs.Int("last", 0, "also show the latest `N` calls recorded so far")
	fs.Func("n", "", replaced(errOut, "n", "-last N", func(n string) error { return fs.Set("last", n) }))
	var since unitDuration
	fs.Var(&since, "since", "also show the recorded calls of the last `TIME`, such as 5m")
	if err := parseSub(fs, args, out, "tail shows the calls of a running criproxy as they happen, until Ctrl-C.", 0, 0); err != nil {
		return err
	}
	if err := l.check("tail"); err != nil {
		return err
	}
	if *last < 0 || since < 0 {
		return &UsageError{errors.New("tail: -last and -since cannot be negative")}
	}
	socket, err := asked.one(ctx)
	if err != nil {
		return err
	}
	look := past{none: !*all && *last == 0 && since == 0, last: *last}
	if since > 0 {
		look.since = time.Now().Add(-time.Duration(since))
	}
	if !look.none {
		look.over = func() { l.none(errOut, "recorded calls") }
	}
	client := admin.NewClient(socket)
	response, err := client.Get(ctx, "/events?follow=true")
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		err := l.follow(response, look, first, out)
		if ctx.Err() != nil {
			break // Ctrl-C
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if response = l.reconnect(ctx, client); response == nil {
			fmt.Fprintln(errOut, "criproxy: the criproxy at", socket, "has stopped")
			break
		}
		fmt.Fprintln(errOut, "criproxy: another process has taken over; its calls follow")
		look = past{none: true}
	}
	l.none(errOut, "calls")
	return nil
}

// follow shows the events in the answer of a process until the answer ends. Of what the process has inherited from the
// one before it, follow shows only what it has not shown yet.
func (l *callView) follow(response *http.Response, look past, first bool, out io.Writer) error {
	defer response.Body.Close() // it is read to its end, or no longer needed
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return err
	}
	latest := l.latest
	if err := l.open(r.Header(), out); err != nil {
		return err
	}
	from := telemetry.RecordedHeader
	if !first { // what the process before this one recorded after it had passed on its recording has the same numbers
		from = telemetry.InheritedHeader
	}
	look.until, _ = strconv.ParseUint(response.Header.Get(from), 10, 64)
	switch {
	case first && !l.printer.JSON:
		l.printer.Header()
		l.trouble(r.Header())
	case !first:
		look.until = min(look.until, latest)
	}
	l.past = look
	return l.read(r)
}

// trouble shows which runtimes are not up at the beginning.
func (l *callView) trouble(h *capture.FileHeader) {
	for _, b := range h.Backends {
		c := &capture.Change{Time: b.Since, What: b.State, Backend: b.Name, Why: b.Why}
		if b.State != "" && b.State != capture.Up && l.filter.MatchChange(c) {
			l.printer.Change(c)
		}
	}
}

// reconnectTime is how long tail waits for another process to take over.
const reconnectTime = 5 * time.Second

// reconnect returns the answer of the process that has taken over, nil if there is none.
func (l *callView) reconnect(ctx context.Context, client *admin.Client) *http.Response {
	for until := time.Now().Add(reconnectTime); time.Now().Before(until); {
		if response, err := client.Get(ctx, "/events?follow=true"); err == nil {
			return response
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// Dump is the subcommand that saves what a running criproxy has recorded.
func Dump(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	fs := subFlags("dump")
	var asked nodeFlags
	asked.flags(fs)
	to := fileArgument(fs, errOut)
	var schema schemaFlags
	schema.flags(fs)
	var since, until unitDuration
	fs.Var(&since, "since", "only calls that began in the last `TIME`, such as 5m")
	fs.Var(&until, "until", "only calls that began before the last `TIME`, such as 1m")
	if err := parseSub(fs, args, out, `dump FILE saves the latest calls, which a running criproxy keeps in memory, in FILE.jsonl, .pcapng or
.binlog, which must not exist yet; with .zst behind that, as in FILE.jsonl.zst, the file is compressed. Without FILE it prints them, as JSON lines.`, 0, 1); err != nil {
		return err
	}
	if since < 0 || until < 0 || since > 0 && until >= since {
		return &UsageError{errors.New("dump: -since and -until say how long ago: they cannot be negative, and -since must be longer ago than -until")}
	}
	now := time.Now()
	chosen := choice{before: now.Add(-time.Duration(until)), calls: map[uint64]bool{}}
	if until == 0 {
		chosen.before = time.Time{}
	}
	if since > 0 {
		chosen.from = now.Add(-time.Duration(since))
	}
	path := to()
	format := capture.JSONL
	if path != "" {
		if format, err = capture.FormatOf(path); err != nil {
			return &UsageError{fmt.Errorf("dump: %w", err)}
		}
	}
	socket, err := asked.one(ctx)
	if err != nil {
		return err
	}
	response, err := admin.NewClient(socket).Get(ctx, "/events")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return err
	}
	n, err := copyCapture(r, &schema, format, path, out, chosen.has)
	if err == nil && path != "" {
		fmt.Fprintf(errOut, "criproxy: %d events in %s\n", n, path)
	}
	return err
}

// choice selects the events of calls that began in a time.
type choice struct {
	from, before time.Time       // zero for no bound
	calls        map[uint64]bool // :: call → whether it is selected
}

// has reports whether to keep an event: by its own time, or by that of the first event of its call.
func (c *choice) has(ev *capture.Event) bool {
	in := !ev.Time.Before(c.from) && (c.before.IsZero() || ev.Time.Before(c.before))
	if ev.Kind == capture.Missed || ev.Kind == capture.Changed {
		return in
	}
	if first, known := c.calls[ev.Call]; known {
		return first
	}
	c.calls[ev.Call] = in
	return in
}

// fileArgument returns a function that returns the file to write to: the argument of the command, or the value of -o, as
// in earlier releases. The function may be called after fs has been parsed.
func fileArgument(fs *flag.FlagSet, errOut io.Writer) func() string {
	var former string
	fs.Func("o", "", replaced(errOut, "o", fs.Name()+" FILE", func(file string) error { former = file; return nil }))
	return func() string { return cmp.Or(fs.Arg(0), former) }
}

// copyCapture writes the events of a reader to the file at path, or to out if path is empty. It returns how many events
// it wrote. It leaves out events for which has is false; a nil has keeps all.
func copyCapture(r *capture.Reader, flags *schemaFlags, format capture.Format, path string, out io.Writer, has func(*capture.Event) bool) (n int, err error) {
	_, schema, err := flags.load(r.Header().Descriptors)
	if err != nil {
		return 0, err
	}
	if path != "" {
		file, err := createFile(path)
		if err != nil {
			return 0, err
		}
		packed, err := capture.Packed(file, path)
		if err != nil {
			return 0, errors.Join(err, file.Close())
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
