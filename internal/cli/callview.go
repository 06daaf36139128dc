package cli

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/criproxy/criproxy/internal/capture"
	"github.com/criproxy/criproxy/internal/inspect"
	"github.com/criproxy/criproxy/internal/show"
)

// callView is how calls are shown, the same for calls under way and for those in files.
type callView struct {
	filter  inspect.Filter
	output  outputFlags
	schema  schemaFlags
	printer inspect.Printer

	assembler *inspect.Assembler
	past      past
	every     func(c *inspect.Call)

	seen, shown int    // calls
	latest      uint64 // event
}

// past selects how many of the calls from before the command started are shown. The zero past
// shows all.
type past struct {
	until uint64    // the latest event that was recorded then; none if it is zero
	none  bool      // nothing is shown
	since time.Time // nothing that began earlier is shown
	last  int       // only so many calls are shown, if it is not zero

	kept [][]byte // the latest of them, printed
	done bool     // what follows is the present
	over func()   // is called when the present begins; nil calls nothing
}

// flags adds those of a look to fs.
func (l *callView) flags(fs *flag.FlagSet) {
	fs.StringVar(&l.filter.Method, "method", "", "only methods that fit `PATTERN`, such as 'Run*|Stop*'")
	fs.StringVar(&l.filter.Backend, "backend", "", "only calls to backends that fit `PATTERN`; the primary may be called primary")
	fs.StringVar(&l.filter.Client, "client", "", "only calls of clients whose name fits `PATTERN`")
	fs.StringVar(&l.filter.Status, "status", "", "only calls that ended with `CODE`; several with commas between, ! before for all others: '!OK'")
	fs.StringVar(&l.filter.Namespace, "namespace", "", "only calls about namespaces that fit `PATTERN`")
	fs.StringVar(&l.filter.Pod, "pod", "", "only calls about pods whose name fits `PATTERN`")
	fs.StringVar(&l.filter.Container, "container", "", "only calls about containers whose name fits `PATTERN`")
	fs.StringVar(&l.filter.ID, "id", "", "only calls about an id that begins with `ID`")
	fs.Var((*unitDuration)(&l.filter.Slower), "slower", "only calls that took at least `TIME`, such as 100ms")
	fs.StringVar(&l.filter.FollowPod, "follow-pod", "", "all calls in the life of one `POD`: NAME, NAMESPACE/NAME, its uid, or the beginning of its sandbox's id")
	fs.BoolVar(&l.filter.Own, "own", false, "also calls that criproxy makes itself")
	fs.BoolVar(&l.printer.Full, "full", false, "show the messages, with the names of their fields, on each leg")
	fs.BoolVar(&l.printer.Changes, "diff", false, "show what the proxy changed on the way, field by field")
	l.output.lineFlags(fs)
	l.schema.flags(fs)
}

// open prepares for events of a source.
func (l *callView) open(h *capture.FileHeader, out io.Writer) error {
	m, err := l.schema.meaning(h)
	if err != nil {
		return err
	}
	p := &l.printer
	p.Out, p.Schema, p.Text, p.Colour, p.Order = l.output.lines(out), m.schema, m.text, show.Colours(out), nil
	for _, b := range h.Backends {
		p.Order = append(p.Order, b.Name)
	}
	l.assembler = inspect.NewAssembler(m.schema, m.names)
	return nil
}

// check returns an error if the flags of a command are invalid.
func (l *callView) check(command string) error {
	if err := l.filter.Check(); err != nil {
		return &UsageError{fmt.Errorf("%s: %w", command, err)}
	}
	err := l.output.check(command)
	l.printer.JSON = l.output.programs()
	return err
}

// add takes an event, and shows the call when it is complete.
func (l *callView) add(ev *capture.Event) error {
	l.latest = ev.Seq
	if l.past.done || ev.Seq > l.past.until {
		l.present()
		return l.show(ev)
	}
	var err error
	switch p := &l.past; {
	case p.none:
		l.assembler.Add(ev)
	case p.last == 0:
		err = l.show(ev)
	default:
		var b bytes.Buffer
		out := l.printer.Out
		l.printer.Out = &b
		err = l.show(ev)
		if l.printer.Out = out; b.Len() > 0 {
			p.kept = append(p.kept, b.Bytes())
			p.kept = p.kept[max(len(p.kept)-p.last, 0):]
		}
	}
	if ev.Seq == l.past.until {
		l.present()
	}
	return err
}

// present shows what is kept of the past, which is over.
func (l *callView) present() {
	if l.past.done {
		return
	}
	l.past.done = true
	for _, one := range l.past.kept {
		_, _ = l.printer.Out.Write(one) // the next call finds out
	}
	l.past.kept = nil
	if l.past.over != nil {
		l.past.over()
	}
}

// show shows the call of an event, if that is what it completes.
func (l *callView) show(ev *capture.Event) error {
	c, what := l.assembler.Add(ev)
	if ev.Kind == capture.Missed && !l.printer.JSON {
		fmt.Fprintf(l.printer.Out, "... %d events are missing here\n", ev.Missed)
	}
	if what == inspect.Nothing {
		return nil
	}
	counts := what == inspect.Done && (l.filter.Own || !c.Own)
	if counts {
		l.seen++
	}
	if !l.filter.Match(c) || !l.past.done && c.Began.Before(l.past.since) {
		return nil
	}
	if counts {
		l.shown++
	}
	switch {
	case l.every != nil:
		if what == inspect.Done {
			l.every(c)
		}
	case what == inspect.Streamed:
		l.printer.Streamed(c)
	default:
		l.printer.Print(c)
	}
	return l.printer.Err()
}

// none says so if calls were there, and the flags chose none of them.
func (l *callView) none(errOut io.Writer, of string) {
	if l.shown == 0 && l.seen > 0 {
		fmt.Fprintf(errOut, "criproxy: 0 of %d %s match\n", l.seen, of)
	}
}

// unitDuration is a duration whose flag says what is missing from a number alone.
type unitDuration time.Duration

func (d *unitDuration) String() string { return time.Duration(*d).String() }

// Set is for the flag package.
func (d *unitDuration) Set(s string) error {
	parsed, err := time.ParseDuration(s)
	if _, number := strconv.ParseFloat(s, 64); err != nil && number == nil {
		return fmt.Errorf("it has no unit; want %sms or %ss", s, s)
	} else if err != nil {
		return errors.New("want a time such as 500ms or 5m")
	}
	*d = unitDuration(parsed)
	return nil
}

// read shows all events that a reader has.
func (l *callView) read(r *capture.Reader) error {
	for {
		var ev capture.Event
		switch err := r.Next(&ev); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := l.add(&ev); err != nil {
			return err
		}
	}
}
