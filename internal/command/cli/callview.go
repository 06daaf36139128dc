package cli

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// callView shows calls, for commands that show calls as they happen and for those that read a file.
type callView struct {
	filter  calls.Filter
	only    *choice // the events of the selected time; nil for all
	known   *known  // what the patterns may match
	output  outputFlags
	schema  schemaFlags
	printer calls.Printer

	assembler *calls.Assembler
	past      past
	every     func(c *calls.Call)
	event     func(ev *capture.Event)                       // gets each event first; may be nil
	found     func(*capture.Event, *calls.Call, calls.What) // gets each event with what the assembler made of it; may be nil
	story     *merger                                       // gets what is shown, of one of several nodes; may be nil
	late      io.Writer                                     // where release prints what holdBack has kept; nil if nothing is kept

	seen, shown int       // how many calls
	latest      uint64    // number of the latest event
	at          time.Time // of that event

	changes map[capture.ChangeKey]bool // that have come, if the events are of a running criproxy
	began   time.Time                  // when the first of them were asked for
}

// past selects which calls from before the start of the command are shown. The zero value shows all.
type past struct {
	until uint64    // number of the latest event recorded then; zero if there was none
	none  bool      // show none of these calls
	ends  bool      // show only these calls
	since time.Time // show no calls that began earlier
	last  int       // show only the latest calls, so many; zero shows all
	asked uint64    // only the latest events were asked for, so many, which may have fewer calls; zero: all were
	more  bool      // the process was asked before, for fewer events

	again  bool      // another process answers than before
	passed time.Time // show none of the events that the process before passed on, until that time

	kept  []said    // the latest calls, if last is not zero
	sure  int       // how many of these, at the end, would be the same if more events had been asked for
	doubt bool      // the latest event is of a call that may not be
	first time.Time // of the first event

	done bool         // all events from now on are later than the start of the command
	over func() error // called when done becomes true; nil calls nothing
}

// flags adds the flags that select and format calls to fs.
func (l *callView) flags(fs *flag.FlagSet) {
	fs.StringVar(&l.filter.Method, "method", "", "only methods whose name matches `PATTERN`, such as 'Run*|Stop*', or with a / their service and name, such as 'ImageService/*'; in each PATTERN, | and commas separate several, * is any text, and a leading ! selects all others")
	fs.StringVar(&l.filter.Backend, "backend", "", "only calls to backends that match `PATTERN`; a primary without a name is called primary")
	fs.StringVar(&l.filter.Client, "client", "", "only calls of clients whose name matches `PATTERN`")
	fs.StringVar(&l.filter.Status, "status", "", "only calls that ended with a code that matches `PATTERN`, such as '!OK' or 'Unavailable|DeadlineExceeded'")
	fs.StringVar(&l.filter.Namespace, "namespace", "", "only calls about namespaces that match `PATTERN`")
	fs.StringVar(&l.filter.Pod, "pod", "", "only calls about pods whose name matches `PATTERN`, or with a / their namespace and name, such as 'default/web*'")
	fs.StringVar(&l.filter.Container, "container", "", "only calls about containers whose name matches `PATTERN`")
	fs.StringVar(&l.filter.ID, "id", "", "only calls about an id that begins with `ID`")
	fs.Var((*unitDuration)(&l.filter.Slower), "slower", "only calls that took at least `TIME`, such as 100ms")
	fs.StringVar(&l.filter.FollowPod, "follow-pod", "", "all calls in the life of one `POD`, or of several with commas between: NAME, NAMESPACE/NAME, its uid, or the beginning of its sandbox's id")
	fs.BoolVar(&l.filter.FromCache, "memory", false, "only calls that criproxy answered from its cache, for at least one runtime")
	fs.StringVar(&l.filter.Find, "find", "", "only calls that contain all `WORDS` anywhere: in names, ids, the status, or its message")
	fs.Uint64Var(&l.filter.Call, "call", 0, "only the call with this `NUMBER`, which the page of a recording and -o json show")
	fs.BoolVar(&l.filter.Own, "own", false, "also calls that criproxy makes itself")
	fs.BoolVar(&l.printer.Full, "full", false, "show the messages, with the names of their fields, on each leg")
	fs.BoolVar(&l.printer.Changes, "diff", false, "show what criproxy changed on the way, field by field")
	l.output.lineFlags(fs)
	l.schema.flags(fs)
}

// open prepares to show the events of the recording with the header h.
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
	if l.known == nil {
		l.known = &known{methods: map[string]bool{}, backends: map[string]bool{}}
	}
	for _, one := range m.schema.Methods() {
		l.known.methods[one.Name] = true
	}
	for _, name := range p.Order {
		l.known.backends[name] = true
	}
	l.assembler = calls.NewAssembler(m.schema, m.names)
	return nil
}

// known is which methods and backends there are: those of the API and of the header, and those of calls that were seen.
type known struct{ methods, backends map[string]bool }

// add takes those of a call.
func (k *known) add(c *calls.Call) {
	k.methods[c.Method] = true
	for _, name := range append(c.Backends(), c.FromCache()...) {
		k.backends[name] = true
	}
}

// unmatched returns an error about a pattern for methods or backends that can match none.
func (l *callView) unmatched() error {
	err := calls.UnmatchedMethod(l.filter.Method, slices.Sorted(maps.Keys(l.known.methods)))
	if err == nil && l.story == nil { // another node may have the backend
		err = calls.Unmatched("backend", l.filter.Backend, "backend", slices.Sorted(maps.Keys(l.known.backends)))
	}
	if err != nil {
		return &UsageError{err}
	}
	return nil
}

// unmatchedLive is unmatched for calls that are still to come: a full name may be of an API that nobody described.
func (l *callView) unmatchedLive() error {
	if strings.Contains(l.filter.Method, "/") {
		return nil
	}
	return l.unmatched()
}

// holdBack makes the printer keep what it prints until release, if a pattern matches nothing that is known so far: the
// error about it would come after other output.
func (l *callView) holdBack() {
	if l.unmatched() != nil {
		l.late, l.printer.Out = l.printer.Out, &bytes.Buffer{}
	}
}

// release prints what holdBack has kept, or returns the error of unmatched: that method of l, or unmatchedLive.
func (l *callView) release(unmatched func() error) error {
	if err := unmatched(); err != nil || l.late == nil {
		return err
	}
	kept := l.printer.Out.(*bytes.Buffer)
	l.late, l.printer.Out = nil, l.late
	_, err := l.printer.Out.Write(kept.Bytes())
	return err
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
	if l.only != nil && !l.only.has(ev) {
		return nil
	}
	l.latest, l.at = ev.Seq, ev.Time
	if l.past.first.IsZero() && ev.Kind != capture.Changed { // the time of a change is when it began
		l.past.first = ev.Time.Add(-l.printer.Off)
	}
	if l.event != nil {
		l.event(ev)
	}
	before := !l.past.done && ev.Seq <= l.past.until || ev.Passed && !ev.Time.After(l.past.passed)
	var err error
	if !before {
		if err = l.present(); err != nil {
			return err
		}
	}
	missed := l.missed(ev)
	switch p := &l.past; {
	case before && p.none && !missed:
		l.assembler.Add(ev)
	case l.story == nil && (!before || p.last == 0):
		err = l.show(ev)
	default:
		var b bytes.Buffer
		out := l.printer.Out
		l.printer.Out = &b
		err = l.show(ev)
		one := said{at: ev.Time.Add(-l.printer.Off), text: b.Bytes()}
		switch l.printer.Out = out; {
		case b.Len() == 0:
		case before && p.last > 0:
			p.kept = append(p.kept, one)
			p.kept = p.kept[max(len(p.kept)-p.last, 0):]
			p.sure++
		default:
			l.write(one)
		}
		if p.doubt {
			p.sure, p.doubt = 0, false
		}
	}
	if before && ev.Seq == l.past.until {
		err = cmp.Or(err, l.present())
	}
	return err
}

// missed reports whether an event is a change of the process before this one that has not come: a crash ends the connection
// before the latest events pass, but criproxy keeps each change at once.
func (l *callView) missed(ev *capture.Event) bool {
	if ev.Kind != capture.Changed || l.changes == nil {
		return false
	}
	key := ev.Change.Key()
	known := l.changes[key]
	l.changes[key] = true
	return l.past.again && !known && !ev.Change.Time.Before(l.began)
}

// write writes what was shown of a call.
func (l *callView) write(s said) {
	if l.story != nil {
		l.story.put(s.at, s.text)
	} else {
		_, _ = l.printer.Out.Write(s.text) // showing the next call reports the error
	}
}

// errShort says that the latest events have fewer calls than the latest ones that are to be shown, or not all of them as they are.
var errShort = errors.New("more events are needed")

// present ends the past, and shows the calls kept of it. It returns the error of over, or errShort.
func (l *callView) present() error {
	p := &l.past
	if p.done {
		return nil
	}
	long := len(p.kept) > 0 && len(p.kept) == p.last && p.kept[0].at.Sub(p.first) >= longCall
	if p.asked > 0 && p.sure < p.last && !long {
		return errShort
	}
	p.done = true
	for _, one := range p.kept {
		l.write(one)
	}
	p.kept = nil
	if p.over == nil {
		return nil
	}
	return p.over()
}

// show shows the call of an event, if the event completes it or is a message of a stream.
func (l *callView) show(ev *capture.Event) error {
	c, what := l.assembler.Add(ev)
	l.past.doubt = l.doubts(ev, c)
	if l.found != nil {
		l.found(ev, c, what)
	}
	if ev.Kind == capture.Missed && !l.printer.JSON {
		fmt.Fprintf(l.printer.Out, "... missing here: %s\n", capture.Count(ev.Missed, "event"))
	}
	switch {
	case what == calls.Nothing:
		return nil
	case what == calls.Changed:
		if l.every == nil && l.filter.MatchChange(ev.Change) && (l.past.done || !ev.Change.Time.Before(l.past.since)) {
			l.printer.Change(ev.Change)
		}
		return l.printer.Err()
	}
	l.showCall(c, what)
	return l.printer.Err()
}

// underWay shows the calls that had not ended at the end of a recording.
func (l *callView) underWay() {
	for _, c := range l.assembler.UnderWay() {
		c.Took = max(c.Took, l.at.Sub(c.Began))
		l.showCall(c, calls.Done)
	}
}

// showCall shows a call, or a message of a stream, if the flags select it.
func (l *callView) showCall(c *calls.Call, what calls.What) {
	l.known.add(c)
	counts := what == calls.Done && (l.filter.Own || !c.Own)
	if counts {
		l.seen++
	}
	if !l.filter.Match(c) || !l.past.done && c.Began.Before(l.past.since) {
		return
	}
	if counts {
		l.shown++
	}
	switch {
	case l.every != nil:
		if what == calls.Done {
			l.every(c)
		}
	case what == calls.Streamed:
		l.printer.Streamed(c)
	default:
		l.printer.Print(c)
	}
}

// doubts reports whether what an event ends, a call or a part of one, is perhaps not as it would be if more of the past were
// known. c is nil if the event does not show any call.
func (l *callView) doubts(ev *capture.Event, c *calls.Call) bool {
	if l.filter.Method != "" && !calls.MatchesMethod(l.filter.Method, ev.Method) || ev.Own && !l.filter.Own {
		return false
	}
	if c == nil {
		return ev.Kind == capture.End && (ev.Leg == 0 || ev.Own)
	}
	return c.Partial || c.About.Unnamed()
}

// none prints a message if there were calls, but the flags selected none of them.
func (l *callView) none(errOut io.Writer, of string) {
	if l.shown == 0 && l.seen > 0 {
		fmt.Fprintf(errOut, "criproxy: 0 of %d %s match\n", l.seen, of)
	}
}

// unitDuration is the value of a flag. Its error about a number without a unit suggests units.
type unitDuration time.Duration

func (d *unitDuration) String() string { return time.Duration(*d).String() }

// Set implements flag.Value. A day has 24 hours.
func (d *unitDuration) Set(s string) error {
	parsed, err := time.ParseDuration(s)
	if text, inDays := strings.CutSuffix(s, "d"); inDays {
		var days float64
		if days, err = strconv.ParseFloat(text, 64); math.Abs(days) > 100*366 {
			err = strconv.ErrRange
		}
		parsed = time.Duration(days * float64(24*time.Hour))
	}
	if _, number := strconv.ParseFloat(s, 64); err != nil && number == nil {
		return fmt.Errorf("it has no unit; want %sms or %ss", s, s)
	} else if err != nil {
		return errors.New("want a time such as 500ms, 5m, 24h or 7d")
	}
	*d = unitDuration(parsed)
	return nil
}

// read shows the calls of all events of a reader.
func (l *callView) read(r *capture.Reader) error { return eachEvent(r, l.add) }

// eachEvent calls do with each event of a recording.
func eachEvent(r *capture.Reader, do func(*capture.Event) error) error {
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(&ev)
		}
		if err != nil {
			return err
		}
	}
}
