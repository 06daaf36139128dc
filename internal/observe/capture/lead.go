package capture

import "time"

// A lead is what a reader gets of the events before the time that it asks for: those of the calls that were under way then, and
// the messages of others that say something new, such as what an id means, with the ends of their calls. The rest is left out.
type lead struct {
	until uint64          // number of the first event of that time
	calls map[uint64]bool // :: number of a call that was under way
	begun map[uint64]bool // :: number of another one, of which a message was read, but not the end
}

// lead returns a lead to a time, and the block in which that time begins, of which the lead does not know yet what it says; it
// is empty if no block has events of that time. It returns nil if not all calls under way are known. a is locked.
func (a *archive) lead(shown time.Time) (*lead, block) {
	l := &lead{until: a.ring.next, calls: map[uint64]bool{}, begun: map[uint64]bool{}}
	open, in := a.open(), block{}
	for _, b := range a.all.blocks {
		if b.To >= shown.UnixNano() {
			open, in, l.until = b.Open, *b, b.First
			break
		}
	}
	for _, call := range open {
		l.calls[call] = true
	}
	if open == nil {
		l = nil
	}
	return l, in
}

// enter takes in which calls began and ended, before the time, in the block in which that begins.
func (l *lead) enter(b *block, shown time.Time) {
	for u, ev := b.unpack(), (Event{}); u.next(&ev); {
		if l.until = ev.Seq; ev.Kind != Changed && !ev.Time.Before(shown) { // the time of a change is when it began
			return
		}
		switch {
		case ev.Kind == Start && ev.front():
			l.calls[ev.Call] = true
		case ev.Kind == End && ev.front():
			delete(l.calls, ev.Call)
		}
	}
}

// wants reports whether the message of an event is to be read, and whether only if it says something new.
func (l *lead) wants(ev *Event) (message, onlyNew bool) {
	if l == nil || ev.Seq >= l.until || l.calls[ev.Call] {
		return true, false
	}
	return ev.front(), true
}

// has reports whether an event is not left out.
func (l *lead) has(ev *Event) bool {
	switch {
	case l == nil || ev.Seq >= l.until || ev.Kind == Changed || l.calls[ev.Call]:
		return true
	case ev.Payload != nil:
		l.begun[ev.Call] = true
		return true
	case ev.Kind == End && ev.front() && l.begun[ev.Call]:
		delete(l.begun, ev.Call)
		return true
	}
	return false
}

// unsureFor is how far back readers look for the beginnings of calls.
const unsureFor = 10 * time.Minute

// open returns the numbers of the calls under way, nil if not all of them are known. a is locked.
func (a *archive) open() []uint64 {
	if a.passing || a.unsure > a.mono {
		return nil
	}
	all := make([]uint64, 0, len(a.live))
	for call := range a.live {
		all = append(all, call)
	}
	return all
}
