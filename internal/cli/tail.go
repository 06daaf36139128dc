package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/capture"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/telemetry"
)

// Tail is the subcommand that shows calls as they happen.
func Tail(ctx context.Context, args []string, out, errOut io.Writer) error {
	l := &callView{}
	fs := subFlags("tail")
	l.flags(fs)
	socket := fs.String("admin", config.DefaultAdmin, "the `PATH` of the admin socket of the criproxy to look at")
	past := fs.Bool("past", false, "also the calls that are recorded already")
	if err := parseSub(fs, args, out, "tail shows the calls of a running criproxy as they happen, until Ctrl-C.", 0, 0); err != nil {
		return err
	}
	if err := l.filter.Check(); err != nil {
		return &UsageError{err}
	}
	response, err := admin.NewClient(*socket).Get(ctx, "/events?follow=true")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return err
	}
	if err := l.open(r.Header(), out); err != nil {
		return err
	}
	if !*past {
		l.from, _ = strconv.ParseUint(response.Header.Get(telemetry.RecordedHeader), 10, 64)
	}
	if !l.json {
		l.printer.Header()
	}
	err = l.read(r)
	if ctx.Err() != nil {
		return nil // Ctrl-C
	}
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		fmt.Fprintln(errOut, "criproxy: the criproxy at", *socket, "has stopped")
		return nil
	}
	return err
}

// Dump is the subcommand that saves what a running criproxy has recorded.
func Dump(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	fs := subFlags("dump")
	socket := fs.String("admin", config.DefaultAdmin, "the `PATH` of the admin socket of the criproxy whose calls to save")
	to := fs.String("o", "", "write to `FILE`.jsonl, .pcapng or .binlog, which must not exist yet (default standard output, as JSON lines)")
	var schema schemaFlags
	schema.flags(fs)
	if err := parseSub(fs, args, out, "dump saves the latest calls, which a running criproxy has in memory.", 0, 0); err != nil {
		return err
	}
	format := capture.JSONL
	if *to != "" {
		if format, err = capture.FormatOf(*to); err != nil {
			return &UsageError{fmt.Errorf("-o: %w", err)}
		}
	}
	response, err := admin.NewClient(*socket).Get(ctx, "/events")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return err
	}
	n, err := copyCapture(r, &schema, format, *to, out)
	if err == nil && *to != "" {
		fmt.Fprintf(errOut, "criproxy: %d events in %s\n", n, *to)
	}
	return err
}

// copyCapture writes what a reader has to the file at path, or to out if there is none.
// It returns how many events there were.
func copyCapture(r *capture.Reader, flags *schemaFlags, format capture.Format, path string, out io.Writer) (n int, err error) {
	_, schema, err := flags.load(r.Header().Descriptors)
	if err != nil {
		return 0, err
	}
	if path != "" {
		file, err := createFile(path)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	err = capture.WriteTo(out, format, r.Header(), schema, func(ev *capture.Event) error {
		err := r.Next(ev)
		if err == nil {
			n++
		}
		return err
	})
	return n, err
}
