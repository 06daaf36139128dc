package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// View is the subcommand that shows the calls in a file.
func View(_ context.Context, args []string, out, errOut io.Writer) error {
	l := &callView{}
	fs := subFlags("view")
	l.flags(fs)
	sequence := fs.Bool("sequence", false, "print a sequence diagram in Mermaid's syntax")
	stats := fs.Bool("stats", false, "count calls, errors, bytes and times by method")
	file := fs.String("html", "", "write an HTML page to `FILE`, which must not exist yet; - is standard output")
	var within span
	within.flags(fs)
	if err := cmp.Or(parseSub(fs, args, out, `view FILE shows the calls in a file that criproxy wrote; - is standard input. -html takes the files of several nodes.
-since and -until count back from the end of the recording.`, 1, anyNumber), l.check("view"), within.check("view")); err != nil {
		return err
	}
	switch {
	case *sequence && *stats:
		return &UsageError{errors.New("view: -sequence and -stats exclude each other; choose one")}
	case *sequence && l.printer.JSON:
		return &UsageError{errors.New("view: -sequence prints Mermaid, not JSON; choose -sequence or -o json")}
	case (*sequence || *stats) && (l.printer.Full || l.printer.Changes):
		return &UsageError{errors.New("view: -full and -diff show single calls, -sequence and -stats all calls together; choose one")}
	}
	if *file != "" && (*sequence || *stats || l.printer.JSON || l.printer.Full || l.printer.Changes) {
		return &UsageError{errors.New("view: the page of -html already shows what -sequence, -stats, -o, -full and -diff show; choose one")}
	}
	if fs.NArg() > 1 && *file == "" {
		return &UsageError{errors.New("view: only -html takes several files")}
	}
	open := capture.Open
	if within != (span{}) {
		end, again, err := endOf(fs.Args())
		if err != nil {
			return err
		}
		l.only, open = within.before(end), again
	}
	var recordings []*capture.Reader
	for _, path := range fs.Args() {
		r, err := open(path)
		if err != nil {
			return err
		}
		defer r.Close()
		recordings = append(recordings, r)
	}
	if *file != "" {
		return l.writePage(recordings, fs, *file, out, errOut)
	}
	r := recordings[0]
	if err := l.open(r.Header(), out); err != nil {
		return err
	}
	l.printer.Date = true
	var all []*calls.Call
	var counted calls.Stats
	switch {
	case *sequence:
		l.every = func(c *calls.Call) { all = append(all, c) }
	case *stats:
		l.every = counted.Add
	case !l.printer.JSON:
		l.printer.LateHeader()
	}
	l.holdBack()
	if err := l.read(r); errors.Is(err, io.ErrUnexpectedEOF) {
		fmt.Fprintf(errOut, "criproxy: %s ends in the middle of an event, perhaps because it is still being written\n", fs.Arg(0))
	} else if err != nil {
		return cmp.Or(fmt.Errorf("%s: %w", fs.Arg(0), err), l.release(l.unmatched))
	}
	if *stats { // which are about calls that have ended
		l.every = func(*calls.Call) {}
	}
	l.underWay()
	if err := l.release(l.unmatched); err != nil {
		return err
	}
	l.none(errOut, "calls in "+fs.Arg(0))
	switch {
	case *sequence:
		return calls.Sequence(out, all)
	case *stats && l.printer.JSON:
		return json.NewEncoder(l.printer.Out).Encode(counted.Methods())
	case *stats:
		return counted.Print(out)
	}
	return l.printer.Err()
}

// endOf returns when the latest event of recordings was. again opens them once more, also standard input.
func endOf(paths []string) (end time.Time, again func(path string) (*capture.Reader, error), err error) {
	var typed []byte
	if slices.Contains(paths, "-") {
		if typed, err = io.ReadAll(os.Stdin); err != nil {
			return end, nil, fmt.Errorf("reading standard input: %w", err)
		}
	}
	again = func(path string) (*capture.Reader, error) {
		if path == "-" {
			return capture.NewReader(bytes.NewReader(typed))
		}
		return capture.Open(path)
	}
	for _, path := range paths {
		r, err := again(path)
		if err != nil {
			return end, nil, err
		}
		_ = eachEvent(r, func(ev *capture.Event) error { // the second reading reports what is wrong
			if ev.Time.After(end) {
				end = ev.Time
			}
			return nil
		})
		_ = r.Close() // it was only read
	}
	return end, again, nil
}

// Convert is the subcommand that converts a file of calls to another format.
func Convert(_ context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("convert")
	var schema schemaFlags
	schema.flags(fs)
	if err := parseSub(fs, args, out, "convert FILE TO reads a file of calls and writes TO.jsonl, TO.pcapng or TO.binlog, compressed if .zst is behind that.", 2, 2); err != nil {
		return err
	}
	format, err := capture.FormatOf(fs.Arg(1))
	if err != nil {
		return &UsageError{fmt.Errorf("convert: %w", err)}
	}
	r, err := capture.Open(fs.Arg(0))
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := copyCapture(r, &schema, format, fs.Arg(1), out, nil)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		fmt.Fprintf(errOut, "criproxy: %s ends in the middle of an event, perhaps because it is still being written; converted up to there: %s\n", fs.Arg(0), capture.Count(n, "event"))
		return nil
	}
	if err != nil && n == 0 && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("converting %s: %w", fs.Arg(0), err)
	}
	return err
}
