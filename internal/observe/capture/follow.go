package capture

import (
	"context"
	"encoding/binary"
	"io"
	"time"
)

// A Follower reads the events of a [Recorder] at its own pace. If the recorder has dropped events
// that the follower had not read, the follower gets an event of the kind [Missed] with their number.
// It never makes a call wait. Only one goroutine at a time may use it.
type Follower struct {
	ring   *ring
	redact *Redactor
	linger time.Duration
	chunk  *chunk
	off    int
	next   uint64 // number of the expected record
	since  uint64 // number of the latest record when the follower began
	skip   uint64 // events up to this number are skipped
	names  map[string]string
}

// Linger is how long a follower that has read all events lets new ones gather, so that it does not
// wake up for each.
const Linger = 20 * time.Millisecond

// Follow returns a follower of future events. If everything is set, the follower first reads the
// events that are still in memory.
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

// FollowOwn returns a follower of all events but those that [Recorder.Restore] added.
func (r *Recorder) FollowOwn() *Follower {
	f := r.Follow(true)
	f.skip = r.restored
	return f
}

// enter begins to read a chunk of the ring. The ring's lock is held.
func (f *Follower) enter(c *chunk) {
	c.seen = true
	f.chunk, f.off = c, 0
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
		if f.linger > 0 {
			timer := time.NewTimer(f.linger)
			select {
			case <-timer.C:
			case <-ctx.Done(): // TryNext still returns the rest
				timer.Stop()
				return ctx.Err()
			}
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
	ev.Payload = frame.AppendTo(make([]byte, 0, kept), kept)
}

// try reads an event. If there is none, it returns a channel that is closed when the next event
// comes, or nil if no more events will come.
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
