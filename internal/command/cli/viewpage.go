package cli

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/page"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// writePage writes the calls of recordings as a page for browsers to the file at path. Several are of several nodes.
func (l *callView) writePage(all []*capture.Reader, fs *flag.FlagSet, path string, out, errOut io.Writer) (err error) {
	if path != "-" {
		file, fails := createFile(path)
		if fails != nil {
			return fails
		}
		defer func() {
			if err = errors.Join(err, file.Close()); err != nil {
				_ = os.Remove(path) // half a page is of no use
			}
		}()
		out = file
	}
	buffered := bufio.NewWriterSize(out, 1<<16)
	l.printer.JSON = true // the page itself lists missing events
	w := page.NewWriter(buffered, &l.printer)
	info := page.Info{Title: filepath.Base(fs.Arg(0)), Filter: strings.Join(givenFlags(fs, "html"), " ")}
	var perNode nodeLooks
	var recordings []*recording
	for i, r := range all {
		view := *l
		if l.only != nil {
			view.only = l.only.by(0)
		}
		if err := view.open(r.Header(), out); err != nil {
			return fmt.Errorf("%s: %w", fs.Arg(i), err)
		}
		l.known = view.known
		look := &why.Look{}
		look.Follow(view.assembler)
		look.Begin(r.Header())
		one := &recording{view: &view, file: fs.Arg(i), reader: r}
		if len(all) == 1 {
			info.Of(r.Header())
		} else {
			one.node = nodeOf(r.Header(), one.file)
			if info.Files[one.node] != "" {
				return &UsageError{fmt.Errorf("view: %s and %s are both of %s", filepath.Base(one.file), info.Files[one.node], one.node)}
			}
			info.Add(one.node, filepath.Base(one.file), r.Header())
			info.Title = fmt.Sprintf("%d nodes", len(all))
		}
		w.Of(one.node, &view.printer)
		w.Story.Begin(r.Header())
		view.found, view.event, view.assembler.Lists = look.Take, w.Story.Take, true
		view.every = w.Add
		perNode = append(perNode, lookOf{one.node, look})
		recordings = append(recordings, one)
	}
	w.Finder = perNode
	if info.Cut, err = readTogether(recordings, func(r *recording) { w.Of(r.node, &r.view.printer) }); err != nil {
		return err
	}
	if err := l.unmatched(); err != nil {
		return err
	}
	if err := errors.Join(w.Close(info), buffered.Flush()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if path != "-" {
		fmt.Fprintf(errOut, "criproxy: %s in %s; open it in a browser\n", capture.Count(w.Calls(), "call"), path)
	}
	return nil
}

// A recording is one of those that a page shows.
type recording struct {
	view   *callView
	node   string // empty if it is the only one
	file   string
	reader *capture.Reader
	next   *capture.Event // nil at the end
}

// readTogether shows the calls of all recordings, in the order of their events, and at last those under way. It calls of
// before it shows something of a recording. cut says that one ends in the middle of an event.
func readTogether(all []*recording, of func(*recording)) (cut bool, err error) {
	advance := func(r *recording) error {
		r.next = &capture.Event{}
		err := r.reader.Next(r.next)
		if err == nil {
			return nil
		}
		r.next = nil
		cut = cut || errors.Is(err, io.ErrUnexpectedEOF)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		return fmt.Errorf("%s: %w", r.file, err)
	}
	for _, r := range all {
		if err := advance(r); err != nil {
			return cut, err
		}
	}
	for {
		var first *recording
		for _, r := range all {
			if r.next != nil && (first == nil || r.next.Time.Before(first.next.Time)) {
				first = r
			}
		}
		if first == nil {
			break
		}
		of(first)
		if err := errors.Join(first.view.add(first.next), advance(first)); err != nil {
			return cut, err
		}
	}
	for _, r := range all {
		of(r)
		r.view.underWay()
	}
	return cut, nil
}

// nodeOf returns the node of a recording: as criproxy dump wrote it, or the name of the file.
func nodeOf(h *capture.FileHeader, file string) string {
	base, _, _ := strings.Cut(filepath.Base(file), ".")
	return cmp.Or(h.Node, base)
}

// nodeLooks are what is wrong on several nodes, or on one without a name.
type nodeLooks []lookOf

type lookOf struct {
	node string
	look *why.Look
}

// JSON returns one report of all nodes.
func (l nodeLooks) JSON() []byte {
	if len(l) == 1 {
		return l[0].look.JSON()
	}
	all := why.Report{Findings: []why.Finding{}}
	for _, one := range l {
		r := one.look.Report(why.Options{})
		for _, f := range r.Findings {
			f.Text = one.node + ": " + f.Text
			f.Headline = why.Headline(f.Text)
			f.Show = strings.ReplaceAll(f.Show, "-backend ", "-backend "+one.node+"/")
			all.Findings = append(all.Findings, f)
		}
		all.Seen.Calls += r.Seen.Calls
		all.Seen.Missed += r.Seen.Missed
		if all.Seen.From.IsZero() || !r.Seen.From.IsZero() && r.Seen.From.Before(all.Seen.From) {
			all.Seen.From = r.Seen.From
		}
		if r.Seen.To.After(all.Seen.To) {
			all.Seen.To = r.Seen.To
		}
		if r.Seen.Whole.After(all.Seen.Whole) {
			all.Seen.Whole = r.Seen.Whole
		}
		if r.Seen.Limit != "" {
			all.Seen.Limit = strings.TrimSpace(all.Seen.Limit + " " + one.node + ": " + r.Seen.Limit)
		}
	}
	why.Sort(all.Findings)
	return all.JSON()
}

// createFile makes a file that only its owner can read: calls name everything that runs on a node.
func createFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s exists already; remove it, or choose another name", path)
	}
	return file, err
}

// givenFlags returns the flags that are on a command line, except those called without.
func givenFlags(fs *flag.FlagSet, without ...string) (all []string) {
	fs.Visit(func(f *flag.Flag) {
		if !slices.Contains(without, f.Name) {
			all = append(all, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	return all
}
