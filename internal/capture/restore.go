package capture

import (
	"encoding/binary"
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
		r.ring.put(record(&ev), nil)
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

// record is an event as the ring has it.
func record(ev *Event) []byte {
	l := &Leg{call: ev.Call, leg: ev.Leg, own: ev.Own, method: ev.Method, backend: ev.Backend}
	b := appendHead(nil, ev.Kind, l, ev.Time, ev.Mono)
	if ev.Truncated {
		b[recordFlags] |= flagTruncated
	}
	if ev.Redacted {
		b[recordFlags] |= flagRedacted
	}
	switch ev.Kind {
	case Start:
		b = binary.AppendUvarint(b, uint64(ev.Peer.PID))
		b = binary.AppendUvarint(b, uint64(ev.Peer.UID))
		b = appendString(b, ev.Peer.Name)
		b = binary.AppendUvarint(b, uint64(ev.Timeout))
		b = appendMetadata(b, ev.Metadata, false)
	case Request, Reply:
		b = binary.AppendUvarint(b, uint64(ev.Size))
		b = append(b, ev.Payload...)
	case Header:
		b = appendMetadata(b, ev.Metadata, false)
	case End:
		b = binary.AppendUvarint(b, uint64(ev.Code))
		b = appendString(b, ev.Message)
		b = appendString(b, ev.Details)
		b = appendMetadata(b, ev.Metadata, false)
	}
	return b
}
