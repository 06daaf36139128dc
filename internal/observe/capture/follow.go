package capture

import (
	"cmp"
	"context"
	"encoding/binary"
	"io"
	"slices"
	"time"
)

// A Follower reads the events of a [Recorder] at its own pace. If the recorder has dropped events
// that the follower had not read, the follower gets an event of the kind [Missed] with their number.
// It never makes a call wait. Only one goroutine at a time may use it.
type Follower struct {
	ring    *ring
	archive *archive // nil: this follower fills it
	past    *past    // what is read from the archive now; nil: nothing, but from the ring
	want    *Want
	kept    uint64 // events of notable calls that came before the time from which all are there
	held    *Event // comes after the event of the kind Missed that was read last
	redact  *Redactor
	chunk   *chunk
	off     int
	next    uint64 // number of the expected record
	since   uint64 // number of the latest record when the follower began
	own     bool   // events of other processes are skipped
	skip    uint64 // of these, the number of the last one that Restore has added
	reader  reader
	passes  bool   // nobody needs an event when it reads the next one: it is the archive's or a Writer's
	scratch []byte // the payload of such an event

	known func(*Event) bool // reports whether a message is as one that had no secrets, for which nobody need look then; nil: never
}

// linger is how long a follower that has read all events lets new ones gather, so that it does not
// wake up for each. The longer that is, the longer calls wait while it reads them all at once.
const linger = 5 * time.Millisecond

// Follow returns a follower of future events. If everything is set, the follower first reads the
// events that are still in memory. Before the time from which all are, these are those of calls that failed, were slow, or
// are notable for their method.
func (r *Recorder) Follow(everything bool) *Follower { return r.follower(everything, 0, nil) }

// follower returns a follower, if everything is set from event number from on.
func (r *Recorder) follower(everything bool, from uint64, want *Want) *Follower {
	f := &Follower{ring: r.ring, archive: r.archive, redact: r.redact, reader: newReader(), want: want}
	if everything && r.archive != nil {
		f.past = r.archive.past(from, want)
	}
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	f.since = r.ring.seq
	switch {
	case f.past != nil && len(f.past.blocks) > 0:
		return f
	case everything: // from the ring, which must not forget these unnoticed
		f.past, f.next = nil, r.ring.oldest.first
		f.enter(r.ring.oldest)
		return f
	}
	f.next = r.ring.seq + 1
	f.enter(r.ring.newest)
	f.off = int(r.ring.newest.used.Load())
	return f
}

// FollowWanted is Follow(true), but leaves out events that are not wanted, most of them without decompressing them. It does
// not count them as missing.
func (r *Recorder) FollowWanted(want Want) *Follower {
	want.began = r.Recorded()
	return r.follower(true, 0, &want)
}

// FollowOwn returns a follower of the events that this process records itself. It waits for nothing that earlier processes have
// left.
func (r *Recorder) FollowOwn() *Follower {
	f := r.follower(true, r.restored+1, nil)
	f.own, f.skip = true, r.restored
	return f
}

// enter begins to read a chunk of the ring. The ring's lock is held.
func (f *Follower) enter(c *chunk) {
	if f.chunk != nil {
		f.chunk.readers--
	}
	c.readers++
	c.seen = c.seen || !f.passes
	f.chunk, f.off = c, 0
}

// room returns memory for the payload of an event.
func (f *Follower) room(n int) []byte {
	if !f.passes || n > maxCopied {
		return make([]byte, 0, n)
	}
	f.scratch = slices.Grow(f.scratch[:0], n)
	return f.scratch
}

// Next reads the next event into ev, and waits for one if there is none. The payload of ev stays
// valid. Next returns io.EOF when the recorder is closed and all events have been read, or the error
// of ctx.
func (f *Follower) Next(ctx context.Context, ev *Event) error {
	for {
		got, wake := f.try(ev)
		if got {
			return nil
		}
		if wake == nil {
			return io.EOF
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		timer := time.NewTimer(linger)
		select {
		case <-timer.C:
		case <-ctx.Done(): // TryNext still returns the rest
			timer.Stop()
			return ctx.Err()
		}
	}
}

// TryNext reads the next event into ev, if there is one, and reports whether there was. It does not
// wait.
func (f *Follower) TryNext(ev *Event) bool {
	got, _ := f.try(ev)
	return got
}

// payload copies the message of ev from its frame, if the ring still holds it: the ring forgets
// large messages before their events.
func (f *Follower) payload(ev *Event, place byte) {
	frame := f.ring.frame(f.chunk, place)
	if frame == nil {
		ev.Payload, ev.Truncated = nil, true
		if ev.Seq > f.since { // older frames may have been forgotten before f began
			f.ring.missed.Add(1)
		}
		return
	}
	defer frame.Free()
	kept := min(ev.Size, f.ring.maxPayload)
	ev.Payload = frame.AppendTo(f.room(kept), kept)
}

// try reads an event. If there is none, it returns a channel that is closed when the next event
// comes, or nil if no more events will come.
func (f *Follower) try(ev *Event) (bool, <-chan struct{}) {
	for {
		got, wake := f.read(ev)
		if got && (ev.Kind != Missed && (ev.Seq <= f.skip || f.own && ev.Passed) || !f.want.has(ev)) {
			continue
		}
		return got, wake
	}
}

// read reads the next event, whether it is wanted or not; otherwise it is as try. An event comes from the first of these that has
// one: held, which waits behind the Missed just read; past, while the archive has what the ring has forgotten; and the chunk of
// the ring. After the chunk it goes on in the next one, and in the archive or the oldest chunk if the ring was faster. What neither
// has any more is one event of the kind Missed, unless another process recorded it and it is skipped.
func (f *Follower) read(ev *Event) (bool, <-chan struct{}) {
	if f.held != nil {
		*ev, f.held = *f.held, nil
		return true, nil
	}
	for {
		if f.past != nil {
			if f.pass(ev) {
				return true, nil
			}
			continue
		}
		if f.off < int(f.chunk.used.Load()) {
			n := recordLength(f.chunk.buf[f.off:])
			record := f.chunk.buf[f.off : f.off+n : f.off+n]
			seq := binary.LittleEndian.Uint64(record[recordSeq:])
			if seq < f.next { // the archive had it
				f.off += n
				continue
			}
			if seq > f.next && seq > f.skip {
				*ev = Event{Kind: Missed, Missed: seq - f.next, Seq: seq, Time: time.Now()}
				f.ring.missed.Add(seq - f.next)
				f.next = seq
				return true, nil
			}
			f.off += n
			f.next = seq + 1
			f.reader.decode(record, ev)
			framed := record[recordFlags]&flagFrame != 0
			if framed {
				f.payload(ev, record[n-1])
			}
			secrets := f.redact.concerns(ev.Method, ev.Kind)
			if secrets == nil || f.known != nil && f.known(ev) {
				return true, nil
			}
			if !framed {
				ev.Payload = append(f.room(len(ev.Payload)), ev.Payload...)
			}
			secrets.event(ev)
			return true, nil
		}
		f.ring.mu.Lock()
		if f.off < int(f.chunk.used.Load()) { // since we looked
			f.ring.mu.Unlock()
			continue
		}
		switch {
		case f.chunk.gone && f.archive != nil && f.ring.oldest.first > f.next:
			f.ring.mu.Unlock()
			f.past = f.archive.past(f.next, f.want)
			continue
		case f.chunk.gone:
			f.enter(f.ring.oldest)
		case f.chunk.next != nil:
			f.enter(f.chunk.next)
		case f.ring.closed:
			last := f.ring.seq
			f.ring.mu.Unlock()
			if f.next == 0 || last < f.next {
				return false, nil
			}
			*ev = Event{Kind: Missed, Missed: last + 1 - f.next, Seq: last, Time: time.Now()} // nothing comes after it
			f.next = last + 1
			return true, nil
		default:
			if f.ring.wake == nil {
				f.ring.wake = make(chan struct{})
			}
			wake := f.ring.wake
			f.ring.mu.Unlock()
			return false, wake
		}
		f.ring.mu.Unlock()
	}
}

// pass reads the next event from the archive. At the end of that it goes on in the ring, and returns false.
func (f *Follower) pass(ev *Event) bool {
	ok, notable := f.past.next(ev)
	if !ok {
		f.leave()
		return false
	}
	if f.next == 0 {
		f.next = ev.Seq
	} else if f.past.over >= f.next {
		f.next = f.past.over + 1
	}
	if notable {
		f.kept++
		return true
	}
	if missing := ev.Seq - min(f.next+f.kept, ev.Seq); missing > 0 && ev.Seq > f.skip {
		held := *ev
		f.held = &held
		*ev = Event{Kind: Missed, Missed: missing, Seq: held.Seq, Time: held.Time, Mono: held.Mono}
	}
	f.next, f.kept = max(f.next, f.past.at+1), 0
	return true
}

// leave goes on in the ring after what the archive had, or in what the archive has got meanwhile.
func (f *Follower) leave() {
	empty := f.past.at == 0
	if !empty {
		f.next = max(f.next, f.past.at+1)
	}
	f.past = nil
	f.ring.mu.Lock()
	c := f.ring.oldest
	if f.next > 0 && c.first > f.next && !empty {
		f.ring.mu.Unlock()
		f.past = f.archive.past(f.next, f.want)
		return
	}
	defer f.ring.mu.Unlock()
	f.next = cmp.Or(f.next, c.first)
	for c.next != nil && c.next.first <= f.next {
		c = c.next
	}
	f.enter(c)
}
