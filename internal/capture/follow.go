package capture

import (
	"context"
	"encoding/binary"
	"io"
	"time"
)

// A Follower reads the events of a [Recorder] at its own pace. If the recorder's
// memory ran ahead of it, it gets an event of the kind [Missed] that says how many
// are gone. It never makes a call wait. It must not be used by two goroutines at
// once.
type Follower struct {
	ring   *ring
	redact *Redactor
	linger time.Duration
	chunk  *chunk
	off    int
	next   uint64 // number of the record expected
	since  uint64 // number of the latest record when it began
	skip   uint64 // events up to this one are not for it
	names  map[string]string
}

// Linger is how long a follower lets events gather once it has read all there
// were, so that it is not woken for each.
const Linger = 20 * time.Millisecond

// Follow returns a follower of the events that are still to come, or, with
// everything, also of those that are still there.
func (r *Recorder) Follow(everything bool) *Follower {
	f := &Follower{ring: r.ring, redact: r.redact, linger: Linger, names: map[string]string{}}
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	f.since = r.ring.seq
	if everything {
		f.next = r.ring.oldest.first
		f.enter(r.ring.oldest)
		return f
	}
	f.next = r.ring.seq + 1
	f.enter(r.ring.newest)
	f.off = int(r.ring.newest.used.Load())
	return f
}

// FollowOwn is Follow of everything but what was restored from another recorder.
func (r *Recorder) FollowOwn() *Follower {
	f := r.Follow(true)
	f.skip = r.restored
	return f
}

// enter begins to read a chunk that is in the ring, whose lock is held.
func (f *Follower) enter(c *chunk) {
	c.seen = true
	f.chunk, f.off = c, 0
}

// Next reads the next event into ev, whose payload stays valid for as long as it
// is held, and waits for one if there is none. It returns io.EOF when the
// recorder was closed and all is read, or ctx's error.
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
		if f.linger > 0 {
			timer := time.NewTimer(f.linger)
			select {
			case <-timer.C:
			case <-ctx.Done(): // the rest can be had with TryNext
				timer.Stop()
				return ctx.Err()
			}
		}
	}
}

// TryNext is Next if there is an event already.
func (f *Follower) TryNext(ev *Event) bool {
	got, _ := f.try(ev)
	return got
}

// payload copies the message of ev from its frame, if that is still held: large messages are
// forgotten before the events that they came with.
func (f *Follower) payload(ev *Event, place byte) {
	frame := f.ring.frame(f.chunk, place)
	if frame == nil {
		ev.Payload, ev.Truncated = nil, true
		if ev.Seq > f.since { // what is older may have been forgotten before f began
			f.ring.missed.Add(1)
		}
		return
	}
	defer frame.Free()
	kept := min(ev.Size, f.ring.maxPayload)
	ev.Payload = frame.AppendTo(make([]byte, 0, kept), kept)
}

// try reads an event. If there is none it returns a channel that is closed when there is one,
// or nil if there will never be one.
func (f *Follower) try(ev *Event) (bool, <-chan struct{}) {
	for {
		if f.off < int(f.chunk.used.Load()) {
			n := int(binary.LittleEndian.Uint32(f.chunk.buf[f.off:]))
			record := f.chunk.buf[f.off : f.off+n : f.off+n]
			if seq := binary.LittleEndian.Uint64(record[recordSeq:]); seq > f.next && seq > f.skip {
				*ev = Event{Kind: Missed, Missed: seq - f.next, Seq: seq, Time: time.Now()}
				f.ring.missed.Add(seq - f.next)
				f.next = seq
				return true, nil
			}
			f.off += n
			f.next++
			if f.next-1 <= f.skip {
				continue
			}
			decode(record, f.names, ev)
			held := record[recordFlags]&flagFrame != 0
			if held {
				f.payload(ev, record[n-1])
			}
			f.redact.event(ev, held)
			return true, nil
		}
		f.ring.mu.Lock()
		if f.off < int(f.chunk.used.Load()) { // since we looked
			f.ring.mu.Unlock()
			continue
		}
		switch {
		case f.chunk.gone:
			f.enter(f.ring.oldest)
		case f.chunk.next != nil:
			f.enter(f.chunk.next)
		case f.ring.closed:
			f.ring.mu.Unlock()
			return false, nil
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
