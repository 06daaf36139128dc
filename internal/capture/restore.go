package capture

import (
	"errors"
	"io"
	"time"
)

// Restore puts in the events of an earlier recording, which next reads up to io.EOF, as if they had
// been recorded here. They keep their numbers, and calls that come are counted on from there. It
// is called before anything is recorded, and fails only if next does; what was read before stays.
func (r *Recorder) Restore(next func(*Event) error) error {
	var last Event
	var calls uint64
	var err error
	for {
		var ev Event
		if err = next(&ev); err != nil {
			break
		}
		if ev.Kind < Start || ev.Kind > End || ev.Seq <= last.Seq {
			continue // no event of a call, or one that is there already
		}
		r.ring.mu.Lock()
		r.ring.seq = ev.Seq - 1
		r.ring.mu.Unlock()
		r.ring.put(appendEvent(nil, &ev, false), nil)
		last, calls = ev, max(calls, ev.Call)
	}
	if last.Seq > 0 {
		r.calls.Store(calls)
		r.restored = last.Seq
		r.began = r.began.Add(-last.Mono - max(time.Since(last.Time), 0)) // so that times go on from there
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
