package capture

import (
	"errors"
	"io"
	"time"
)

// Restore adds the events of an earlier recording, which next reads up to io.EOF, as if r had
// recorded them. They keep their numbers, and new calls and events continue these numbers. Restore
// must be called before r records anything. It fails only if next fails; the events that were read
// before stay.
func (r *Recorder) Restore(next func(*Event) error) error {
	var last Event
	var calls uint64
	var err error
	for {
		var ev Event
		if err = next(&ev); err != nil {
			break
		}
		if ev.Kind < Start || ev.Kind == Missed || ev.Seq <= last.Seq {
			continue // a gap, or a repeated event
		}
		r.ring.mu.Lock()
		r.ring.seq = ev.Seq - 1
		r.ring.mu.Unlock()
		r.ring.put(appendEvent(nil, &ev, false), nil)
		if ev.Kind == Changed { // its time is that of the change
			ev.Mono, ev.Time = last.Mono, last.Time
		}
		last, calls = ev, max(calls, ev.Call)
	}
	if last.Seq > 0 {
		r.calls.Store(calls)
		r.restored = last.Seq
		r.began = r.began.Add(-last.Mono - max(time.Since(last.Time), 0)) // so that Mono continues from there
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
