package capture

import (
	"cmp"
	"slices"
	"time"
)

// A past reads events of the archive, from a snapshot of it.
type past struct {
	blocks []block
	from   uint64 // number of the first event of interest
	first  uint64 // number of the first event on the shelf for all
	at     uint64 // number of the latest event that was read or passed over
	over   uint64 // number of the latest event that was passed over, because nobody wants it
	want   *Want
	lead   *lead // nil: nothing is left out
	u      *unpacker
	sorted []Event // of a block of notable calls, which end in another order than they began
	reader reader
}

// past returns a reader of the events from number from on.
func (a *archive) past(from uint64, want *Want) *past {
	if from <= a.earlier {
		a.whole()
	}
	a.mu.Lock()
	p, in := a.snapshot(from, want), block{}
	if want != nil && !want.Shown.IsZero() && from == 0 {
		p.lead, in = a.lead(want.Shown)
	}
	a.mu.Unlock()
	if p.lead != nil {
		p.lead.enter(&in, want.Shown)
	}
	return p
}

// snapshot returns a reader of all events from number from on. a is locked.
func (a *archive) snapshot(from uint64, want *Want) *past {
	a.notable.packer.flush()
	a.all.packer.flush()
	p := &past{from: from, want: want, first: ^uint64(0), reader: newReader()}
	for _, s := range []*shelf{&a.notable, &a.all} {
		wanted := a.wanted(s, want)
		for i, b := range s.blocks {
			if b.kind == partAll {
				p.first = min(p.first, b.First)
			}
			switch {
			case b.Last < from:
			case wanted[i]:
				p.blocks = append(p.blocks, *b)
			case b.kind == partAll: // its numbers are not missing
				p.blocks = append(p.blocks, block{blockIndex: b.blockIndex, kind: partAll})
			}
		}
	}
	return p
}

// wanted reports for each block of a shelf whether a reader wants it.
func (a *archive) wanted(s *shelf, want *Want) []bool {
	wanted := make([]bool, len(s.blocks))
	var needs []uint64         // blocks with the beginnings of calls that the reader wants
	for _, c := range a.live { // they may fail while it reads
		needs = a.all.where(needs, c)
	}
	if a.passing {
		needs = append(needs, anyBlock)
	}
	for i, b := range slices.Backward(s.blocks) {
		if wanted[i] = want.may(&b.blockIndex); wanted[i] {
			needs = append(needs, b.Needs...)
		} else if b.kind == partAll {
			latest := i == len(s.blocks)-1 // its events say to a reader where the present begins
			needed := want.Failed && (slices.Contains(needs, b.First) || slices.Contains(needs, anyBlock))
			wanted[i] = latest || needed && want.during(&b.blockIndex)
		}
	}
	return wanted
}

// next reads the next event, and reports whether there is one. notable says that only notable calls are there.
func (p *past) next(ev *Event) (ok, notable bool) {
	for {
		if len(p.sorted) > 0 {
			*ev, p.sorted = p.sorted[0], p.sorted[1:]
			p.at = max(p.at, ev.Seq)
			return true, true
		}
		for p.u != nil && p.u.next(ev) {
			switch {
			case ev.Seq < p.from:
			case p.lead.has(ev):
				p.at = max(p.at, ev.Seq)
				return true, false
			default:
				p.at, p.over = max(p.at, ev.Seq), ev.Seq
			}
		}
		p.u = nil
		if len(p.blocks) == 0 {
			return false, false
		}
		b := p.blocks[0]
		p.blocks = p.blocks[1:]
		if b.parts == nil {
			p.at, p.over = max(p.at, b.Last), b.Last
			continue
		}
		u := newUnpacker(b.parts)
		u.names, u.known = p.reader.names, p.reader.known
		if b.kind == partAll {
			p.u, u.u.from.seq, u.u.lead = u, p.from, p.lead
			if w := p.want; w != nil {
				u.u.from.seq, u.u.large = max(p.from, w.From), w.Large
				if !w.Since.IsZero() && b.Last <= w.began {
					u.u.from.time = w.Since.UnixNano()
				}
			}
			continue
		}
		for one := (Event{}); u.next(&one); {
			if one.Seq >= p.from && one.Seq < p.first {
				p.sorted = append(p.sorted, one)
			}
		}
		slices.SortStableFunc(p.sorted, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
	}
}

// Want says which events a follower is interested in. The zero Want means all.
type Want struct {
	Since, Until time.Time // zero: no bound. Events that come after the follower began are never too old, whatever the clock says
	From         uint64    // events with smaller numbers are left out

	// Of calls that had ended before Shown, only messages that say something new, such as what an id means, and the ends of
	// their calls are there, as far as it is known which these are. Zero: all that is since Since.
	Shown time.Time

	// Parts of the recording in which no call has such a method, or none has failed, are left out, without decompressing them.
	// Of a call that is of interest, all is there but perhaps replies. The latest events are always there.
	Method func(method string) bool `json:"-"` // nil: any
	Failed bool

	Large Large // which large messages of older events are there

	began uint64 // number of the latest event when the follower began
}

// Large says which messages of more than 16 KiB are there, mostly lists. Events without theirs are truncated.
type Large int

const (
	LargeAll   Large = iota
	LargeFront       // those between criproxy and its clients
	LargeNew         // of these, only those that say something new, such as what an id means
)

const largeMessage = 16 << 10

// has reports whether an event is of the time of interest.
func (w *Want) has(ev *Event) bool {
	return w == nil || ev.Seq >= w.From && (!ev.Time.Before(w.Since) || ev.Seq > w.began) && (w.Until.IsZero() || !ev.Time.After(w.Until))
}

// may reports whether a block may have the end of a call of interest.
func (w *Want) may(x *blockIndex) bool {
	return w == nil || w.during(x) && (w.Method == nil || slices.ContainsFunc(x.Methods, w.Method)) && (!w.Failed || x.Codes&^1 != 0)
}

// during reports whether a block may have events of the time of interest.
func (w *Want) during(x *blockIndex) bool {
	return x.Last >= w.From && (w.Since.IsZero() || x.To >= w.Since.UnixNano() || x.Last > w.began) && (w.Until.IsZero() || x.From <= w.Until.UnixNano())
}
