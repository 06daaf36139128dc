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

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// outputFlags are the flag -o, which chooses the format of the output. -o means nothing else in any command.
type outputFlags struct {
	format  string
	formats []string
}

// flags adds the flag to fs. more are formats in addition to json and yaml.
func (o *outputFlags) flags(fs *flag.FlagSet, more ...string) {
	o.formats = append(more, show.JSON, show.YAML)
	fs.StringVar(&o.format, "o", "", "print `FORMAT` "+strings.Join(o.formats, " or ")+" instead of text")
}

// lineFlags adds the flag to fs, for a command that prints call by call.
func (o *outputFlags) lineFlags(fs *flag.FlagSet) {
	o.formats = []string{show.JSON, show.YAML}
	fs.StringVar(&o.format, "o", "", "print calls as `FORMAT` json, one line for each call, or yaml, one document for each")
}

// programs reports whether the output is for programs.
func (o *outputFlags) programs() bool { return o.format != show.Text && o.format != show.Wide }

// lines returns a writer that takes lines of JSON, and writes them to out in the chosen format.
func (o *outputFlags) lines(out io.Writer) io.Writer {
	if o.format == show.YAML {
		return show.Documents{Out: out}
	}
	return out
}

// check returns an error if the flags are invalid.
func (o *outputFlags) check(command string) error {
	if o.format != show.Text && !slices.Contains(o.formats, o.format) {
		return &UsageError{fmt.Errorf("%s: -o %s: want %s, or no -o for text%s", command, o.format, strings.Join(o.formats, " or "), suggest.Nearest(o.format, o.formats))}
	}
	return nil
}

// watchInterval is how often -watch prints the answer.
const watchInterval = 2 * time.Second

// watch calls print repeatedly until ctx ends. On a terminal it replaces the text that it printed before; elsewhere it
// prints the text only if it differs. An error appears below the text and does not end watch: criproxy may be between
// two processes.
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
		pause(ctx, watchInterval)
	}
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
