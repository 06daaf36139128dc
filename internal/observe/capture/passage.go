package capture

import (
	"slices"
	"strings"

	"github.com/criproxy/criproxy/codec"
)

// A Passage adds to a recorder the events that another process records after the [Recorder.Snapshot] that the recorder has
// restored. A call that the snapshot has keeps its number there; others get new ones. Only one goroutine at a time may use a
// Passage.
type Passage struct {
	rec   *Recorder
	calls map[uint64]uint64 // :: number of a call in the other process → its number here
}

// NewPassage returns a passage to rec, which must end with End or Break.
func NewPassage(rec *Recorder) *Passage {
	rec.setPassing(true)
	return &Passage{rec, map[uint64]uint64{}}
}

// setPassing says whether calls of another process may end.
func (r *Recorder) setPassing(is bool) {
	r.archive.mu.Lock()
	defer r.archive.mu.Unlock()
	r.archive.passing = is
}

// End ends a passage whose other end has said that it is the end.
func (p *Passage) End() { p.rec.setPassing(false) }

// Add adds an event. A gap in the events becomes one of the recorder.
func (p *Passage) Add(ev *Event) {
	if ev.Kind == Missed {
		p.rec.skip(ev.Missed)
		return
	}
	one := *ev
	if one.Passed = true; ev.Call > p.rec.earlier.last.Call {
		if p.calls[ev.Call] == 0 {
			p.calls[ev.Call] = p.rec.calls.Add(1)
		}
		one.Call = p.calls[ev.Call]
	}
	p.rec.ring.put(appendRecord(nil, &one, false), codec.Frame{})
}

// Break ends a passage whose other end has not said that it is the end. It returns the methods of the calls that it leaves
// without an end, each of which is a gap of at least one event.
func (p *Passage) Break() []string {
	p.End()
	open := map[uint64]string{} // :: call → its method
	var ev Event
	last := p.rec.Recorded()
	for f := p.rec.Follow(true); f.TryNext(&ev); {
		switch theirs := ev.Passed || ev.Seq <= p.rec.restored; {
		case ev.Kind == Changed && ev.Change.What == Serving:
			clear(open) // of a process that has crashed before
		case theirs && ev.Kind == Start && ev.front():
			open[ev.Call] = ev.Method
		case theirs && ev.Kind == End && ev.front():
			delete(open, ev.Call)
		}
		if ev.Seq >= last {
			break
		}
	}
	p.rec.skip(uint64(len(open)))
	var methods []string
	for _, method := range open {
		methods = append(methods, strings.TrimPrefix(method, "/"))
	}
	slices.Sort(methods)
	return methods
}

// skip makes the numbers of the events say that n are missing.
func (r *Recorder) skip(n uint64) {
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	r.ring.seq += n
}
