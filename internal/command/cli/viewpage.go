package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/page"
)

// writePage writes the calls of r as a page for browsers to the file at path.
func (l *callView) writePage(r *capture.Reader, fs *flag.FlagSet, path string, out, errOut io.Writer) (err error) {
	if path != "-" {
		file, err := createFile(path)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	buffered := bufio.NewWriterSize(out, 1<<16)
	w := page.NewWriter(buffered, &l.printer)
	n := 0
	l.printer.JSON = true // the page itself lists missing events
	w.Story.Begin(r.Header())
	l.event, l.assembler.Lists = w.Story.Take, true
	l.every = func(c *calls.Call) { w.Add(c); n++ }
	info := page.Info{Title: filepath.Base(fs.Arg(0)), Filter: givenFlags(fs, "html")}
	info.Of(r.Header())
	switch err := l.read(r); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		info.Cut = true
	case err != nil:
		return fmt.Errorf("%s: %w", fs.Arg(0), err)
	}
	rest := l.assembler.UnderWay()
	slices.SortFunc(rest, func(a, b *calls.Call) int { return a.Began.Compare(b.Began) })
	for _, c := range rest {
		if l.filter.Match(c) {
			l.every(c)
		}
	}
	if err := errors.Join(w.Close(info), buffered.Flush()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if path != "-" {
		fmt.Fprintf(errOut, "criproxy: %d calls in %s; open it in a browser\n", n, path)
	}
	return nil
}

// createFile makes a file that only its owner can read: calls name everything that runs on a node.
func createFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s exists already; remove it, or choose another name", path)
	}
	return file, err
}

// givenFlags returns the flags that were given, except one, as on a command line.
func givenFlags(fs *flag.FlagSet, without string) string {
	var all []string
	fs.Visit(func(f *flag.Flag) {
		if f.Name != without {
			all = append(all, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	return strings.Join(all, " ")
}
