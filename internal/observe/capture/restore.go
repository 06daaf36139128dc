package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/criproxy/criproxy/codec"
)

// An inheritance is what is known of the recordings that a recorder continues.
type inheritance struct {
	last    blockIndex      // the largest numbers of an event and of a call, and the time of the last event
	oldest  int64           // time of the first event of a part with calls; zero: there are none
	changes map[uint64]bool // hashes of the keys of the changes
}

// note takes in the index of a block.
func (in *inheritance) note(x *blockIndex) {
	if x.Last > in.last.Last {
		in.last.Last = x.Last
		if x.At != 0 { // it has more than changes
			in.last.At, in.last.Mono = x.At, x.Mono
		}
	}
	in.last.Call = max(in.last.Call, x.Call)
	if x.At != 0 && (in.oldest == 0 || x.From < in.oldest) {
		in.oldest = x.From
	}
	for _, hash := range x.Changes {
		if in.changes == nil {
			in.changes = map[uint64]bool{}
		}
		in.changes[hash] = true
	}
}

// Restore adds the events of earlier recordings, the oldest first, as if r had recorded them. They keep their numbers, and
// new calls and events continue these numbers. Each recording is what [Recorder.Snapshot] or a [Keeper] has written, or a
// capture. Restore must be called before r records anything. After an error, all that could be read is there.
func (r *Recorder) Restore(recordings ...[]byte) error {
	var errs []error
	var in inheritance
	var atEnd bool // events after these are lost
	for _, data := range recordings {
		if r.archive != nil && bytes.HasPrefix(data, []byte(blockMagic)) {
			_, blocks, end, lost := readBlocks(data)
			errs, atEnd = append(errs, lost), end
			for _, b := range r.archive.adopt(blocks) {
				in.note(&b.blockIndex)
			}
			r.follow(in.last.Last)
			continue
		}
		from, err := NewReader(bytes.NewReader(data))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for {
			var ev Event
			if err := from.Next(&ev); err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // a process that crashed may cut its file off
					errs = append(errs, err)
				}
				break
			}
			if ev.Kind < Start || ev.Kind == Missed || ev.Seq <= in.last.Last {
				continue // a gap, or a repeated event
			}
			r.Add(&ev)
			var x blockIndex
			x.add(&ev)
			in.note(&x)
		}
	}
	r.goOn(&in)
	if atEnd && in.last.Last > 0 {
		r.skip(1) // at least
	}
	return errors.Join(errs...)
}

// goOn makes the next events and calls follow those of earlier recordings.
func (r *Recorder) goOn(in *inheritance) {
	if r.earlier = *in; in.last.Last == 0 {
		return
	}
	r.calls.Store(in.last.Call)
	r.restored = in.last.Last
	if in.last.At != 0 {
		r.kept = time.Unix(0, in.last.At)
		r.began = r.began.Add(-time.Duration(in.last.Mono) - max(time.Since(r.kept), 0)) // so that Mono continues from there
	}
}

// Lacks returns those of the changes, the latest that earlier processes have noted, that came after what r has restored. It
// need not unpack the recordings for that, unless an older criproxy has written them.
func (r *Recorder) Lacks(latest []Change) []Change {
	in := &r.earlier
	if r.archive != nil {
		r.archive.each(func(b *block) {
			if b.Changes == nil {
				b.Changes = []uint64{}
				for u, ev := b.unpack(), (Event{}); u.next(&ev); {
					b.add(&ev)
				}
				in.note(&b.blockIndex)
			}
		})
	}
	for i := range slices.Backward(latest) {
		if in.changes[latest[i].Key().hash()] {
			return latest[i+1:]
		}
	}
	from := slices.IndexFunc(latest, func(c Change) bool {
		if in.oldest == 0 { // nothing is left: begin with the process that has crashed
			return c.PID == latest[len(latest)-1].PID
		}
		return c.Time.UnixNano() >= in.oldest
	})
	if from < 0 {
		return nil
	}
	return latest[from:]
}

// Add adds an event of another recording, as it is. Its number must be larger than those before.
func (r *Recorder) Add(ev *Event) {
	r.ring.mu.Lock()
	r.ring.seq = ev.Seq - 1
	r.ring.mu.Unlock()
	r.ring.put(appendRecord(nil, ev, false), codec.Frame{})
	if r.archive != nil {
		r.archive.take(takeAtOnce)
	}
}

// follow makes the next event, which must be the first, follow number seq.
func (r *Recorder) follow(seq uint64) {
	r.ring.mu.Lock()
	r.ring.seq, r.ring.oldest.first = seq, seq+1
	r.ring.mu.Unlock()
	r.archive.ring.next = seq + 1
}

// adopt puts blocks of another archive on the shelves, and returns them.
func (a *archive) adopt(blocks []*block) []*block {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range blocks {
		s := &a.all
		if b.kind == partNotable {
			s = &a.notable
		}
		s.blocks = slices.DeleteFunc(s.blocks, func(has *block) bool { // the next file has all of a block, or has it again
			return has.First >= b.First && has.Last <= b.Last
		})
		s.blocks = append(s.blocks, b)
	}
	a.all.forget()
	a.notable.forget()
	return blocks
}

// Snapshot returns all events, for [Recorder.Restore] in another process, and a follower of those that come later, for a
// [Passage] there. h describes the events. All is nil if there is no archive.
func (r *Recorder) Snapshot(h *FileHeader) (data []byte, rest *Follower) {
	if r.archive == nil {
		return nil, nil
	}
	data = appendHeader(nil, h)
	r.archive.drain()
	next := uint64(1)
	r.archive.each(func(b *block) { data, next = append(data, b.parts...), r.archive.ring.next })
	rest = r.Follow(true)
	rest.next, rest.past = next, r.archive.past(next, nil)
	return data, rest
}

// drain moves all that was recorded until now to the archive.
func (a *archive) drain() {
	a.ring.ring.mu.Lock()
	last := a.ring.ring.seq
	a.ring.ring.mu.Unlock()
	for all := false; !all && a.position() < last; {
		all, _ = a.take(takeAtOnce)
	}
}

func appendHeader(b []byte, h *FileHeader) []byte {
	content, err := json.Marshal(h)
	if err != nil { // cannot happen: it holds strings and numbers
		return b
	}
	return appendPart(b, partHeader, content)
}

// position returns the number of the latest event that the archive has.
func (a *archive) position() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ring.next - 1
}

// each calls do for each block, the oldest first.
func (a *archive) each(do func(*block)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range []*shelf{&a.notable, &a.all} {
		s.packer.flush()
		for _, b := range s.blocks {
			do(b)
		}
	}
}

// blockDecoder reads a file of blocks, as the followers of a recorder that has it.
type blockDecoder struct {
	r     io.Reader
	f     *Follower
	atEnd bool // events after all others are lost
	last  Event
}

// begin implements decoder.
func (d *blockDecoder) begin() (FileHeader, error) {
	data, err := io.ReadAll(io.LimitReader(d.r, maxRecord))
	if err != nil {
		return FileHeader{}, fmt.Errorf("reading a recording: %w", err)
	}
	h, blocks, atEnd, lost := readBlocks(data)
	if len(blocks) == 0 && lost != nil {
		return h, fmt.Errorf("reading a recording: %w", lost)
	}
	rec := NewRecorder(Config{Schema: codec.NewSchema()})
	rec.archive.all.max, rec.archive.notable.max = maxRecord, maxRecord // all of the file
	rec.archive.adopt(blocks)
	rec.Close()
	d.f, d.atEnd = rec.Follow(true), atEnd
	return h, nil
}

// next implements decoder.
func (d *blockDecoder) next(ev *Event) error {
	switch {
	case d.f.TryNext(ev):
		d.last = *ev
	case d.atEnd:
		d.atEnd = false
		*ev = Event{Kind: Missed, Missed: 1, Seq: d.last.Seq + 1, Time: d.last.Time, Mono: d.last.Mono} // at least
	default:
		return io.EOF
	}
	return nil
}
