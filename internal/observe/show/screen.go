package show

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// A Screen prints for people. It removes control characters, because errors quote runtimes, plugins
// and clients, and the reader is root.
type Screen struct {
	Out    io.Writer
	Colour bool
	Width  int // in characters; zero means no limit, as for files

	said bool // something was printed
}

// NewScreen returns a screen that prints to out. It has colours and a width if out is a terminal.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{Out: out, Colour: Colours(out)}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		s.Width, _, _ = term.GetSize(int(file.Fd())) // zero on an error
	}
	return s
}

// Colours reports whether out is a terminal, and the environment does not turn colours off.
func Colours(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// A Colour is how a text stands out.
type Colour string

// The colours.
const (
	Plain  Colour = ""
	Bold   Colour = "\x1b[1m"
	Dim    Colour = "\x1b[2m"
	Red    Colour = "\x1b[31m"
	Green  Colour = "\x1b[32m"
	Yellow Colour = "\x1b[33m"
)

// StateColour returns the colour for a state of a backend, pod or plugin.
func StateColour(state string) Colour {
	switch state {
	case "up", "ready":
		return Green
	case "gone", "failed", "unknown":
		return Red
	}
	return Yellow
}

// Say prints a paragraph, indented by so many spaces.
func (s *Screen) Say(indent int, format string, args ...any) { s.Paint(Plain, indent, format, args...) }

// Paint prints a paragraph like Say, in a colour.
func (s *Screen) Paint(c Colour, indent int, format string, args ...any) {
	text := calls.Sanitize(fmt.Sprintf(format, args...))
	for line := range strings.Lines(Wrap(text, indent, s.Width)) {
		s.write(s.coloured(c, strings.TrimSuffix(line, "\n")) + "\n")
	}
}

// Title prints the title of a part, below an empty line.
func (s *Screen) Title(text string) {
	s.Gap()
	s.Paint(Bold, 0, "%s", text)
}

// Gap prints an empty line, unless nothing was printed before.
func (s *Screen) Gap() {
	if s.said {
		s.write("\n")
	}
}

func (s *Screen) coloured(c Colour, text string) string {
	if !s.Colour || c == Plain || text == "" {
		return text
	}
	return string(c) + text + "\x1b[0m"
}

// write prints text without control characters. It ignores errors: there is nowhere to report them.
func (s *Screen) write(text string) {
	s.said = true
	_, _ = io.WriteString(s.Out, text)
}

// Wrap breaks text into lines of at most width characters, indented. It breaks neither words nor, if they fit into a line, a
// command before a flag or behind it. With a width of zero there is one line.
func Wrap(text string, indent, width int) string {
	var b strings.Builder
	margin := strings.Repeat(" ", indent)
	if width == 0 {
		return margin + text + "\n"
	}
	column := 0
	for _, word := range whole(strings.Fields(text), width-indent) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			b.WriteString(margin)
			column = indent
		case column+1+n > width:
			b.WriteString("\n" + margin)
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String() + "\n"
}

// whole puts flags together with the words before and behind them, as far as that takes no more than room.
func whole(words []string, room int) (together []string) {
	flag := func(word string) bool { return len(word) > 1 && word[0] == '-' && word != "->" }
	for i, word := range words {
		if last := len(together) - 1; i > 0 && (flag(word) || flag(words[i-1])) && utf8.RuneCountInString(together[last]+" "+word) <= room {
			together[last] += " " + word
		} else {
			together = append(together, word)
		}
	}
	return together
}
