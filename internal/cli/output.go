package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/show"
	"github.com/criproxy/criproxy/internal/suggest"
)

// outputFlags are the flags -o and -json, which say how an answer is printed.
type outputFlags struct {
	format  string
	json    bool
	formats []string
}

// flags adds the flags to fs, with formats besides json and yaml.
func (o *outputFlags) flags(fs *flag.FlagSet, more ...string) {
	o.formats = append(more, show.JSON, show.YAML)
	fs.StringVar(&o.format, "o", "", "print `FORMAT` "+strings.Join(o.formats, " or ")+" in place of text")
	fs.BoolVar(&o.json, "json", false, "print JSON, for programs: -o json")
}

// lineFlags adds the flags to fs, for a command that prints call by call.
func (o *outputFlags) lineFlags(fs *flag.FlagSet) {
	o.formats = []string{show.JSON, show.YAML}
	fs.StringVar(&o.format, "o", "", "print each call as `FORMAT` json, a line, or yaml, a document")
	fs.BoolVar(&o.json, "json", false, "print a line of JSON for each call: -o json")
}

// programs reports whether the output is for programs.
func (o *outputFlags) programs() bool { return o.format != show.Text && o.format != show.Wide }

// lines returns where to write lines of JSON, so that out gets what the flags say.
func (o *outputFlags) lines(out io.Writer) io.Writer {
	if o.format == show.YAML {
		return show.Documents{Out: out}
	}
	return out
}

// check completes the flags. It returns an error if they are invalid.
func (o *outputFlags) check(command string) error {
	if o.json && o.format == "" {
		o.format = show.JSON
	}
	if o.format != show.Text && !slices.Contains(o.formats, o.format) {
		return &UsageError{fmt.Errorf("%s: -o %s: want %s%s", command, o.format, strings.Join(o.formats, " or "), suggest.Nearest(o.format, o.formats))}
	}
	return nil
}

// watchInterval is how often -watch looks.
const watchInterval = 2 * time.Second

// watch prints what print writes again and again, until ctx ends: on a terminal in place of what
// it printed before, and else whenever it differs. An error is printed below: a criproxy
// may be between two processes.
func watch(ctx context.Context, out io.Writer, print func(*show.Screen) error) error {
	screen := show.NewScreen(out)
	var before []byte
	for {
		var b bytes.Buffer
		if err := print(&show.Screen{Out: &b, Colour: screen.Colour, Width: screen.Width}); ctx.Err() != nil {
			return nil // Ctrl-C
		} else if err != nil {
			PrintError(&b, err)
		}
		switch {
		case screen.Width > 0:
			const home, below, rest = "\x1b[H", "\x1b[K\n", "\x1b[J"
			text := home + strings.ReplaceAll(b.String(), "\n", below) + rest
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		case !bytes.Equal(b.Bytes(), before):
			if before != nil {
				fmt.Fprintln(out)
			}
			if _, err := out.Write(b.Bytes()); err != nil {
				return err
			}
			before = b.Bytes()
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return nil
		}
	}
}
