package capture

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/criproxy/criproxy/codec"
)

// An inheritance says how far the earlier recordings go that a recorder continues, and which changes they have.
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
// new calls and events continue these numbers. Each recording is what [Recorder.Snapshot] or a [Keeper] has written. Restore must
// be called before r records anything. After an error, all that could be read is there.
func (r *Recorder) Restore(recordings ...[]byte) error {
	var errs []error
	var in inheritance
	var atEnd bool // events after these are lost
	for _, data := range recordings {
		_, blocks, end, lost := readBlocks(data)
		errs, atEnd = append(errs, lost), end
		r.archive.adopt(blocks)
		for _, b := range blocks {
			in.note(&b.blockIndex)
		}
	}
	r.goOn(&in)
	if atEnd && in.last.Last > 0 {
		r.skip(1) // at least
	}
	return errors.Join(errs...)
}

// RestoreLater is Restore for files that Keepers have written. At once it reads only what the next events follow, and the rest
// when somebody looks at it for the first time. Then it calls done with the error of Restore.
func (r *Recorder) RestoreLater(files []*io.SectionReader, done func(error)) {
	var in inheritance
	known := true
	for _, f := range files {
		blocks, ok := outline(f)
		for _, b := range blocks {
			in.note(&b.blockIndex)
		}
		known = known && ok
	}
	if !known || in.last.Last == 0 { // it must be read to find out
		var all [][]byte
		var errs []error
		for _, f := range files {
			data, err := readFile(f)
			all, errs = append(all, data), append(errs, err)
		}
		done(errors.Join(append(errs, r.Restore(all...))...))
		return
	}
	a := r.archive
	a.earlier = in.last.Last
	a.load = sync.OnceFunc(func() {
		var errs []error
		for _, f := range files {
			data, err := readFile(f)
			_, blocks, _, lost := readBlocks(data)
			a.adopt(blocks)
			errs = append(errs, err, lost)
		}
		done(errors.Join(errs...))
	})
	r.goOn(&in)
}

func readFile(f *io.SectionReader) ([]byte, error) {
	data := make([]byte, f.Size())
	n, err := io.ReadFull(io.NewSectionReader(f, 0, f.Size()), data)
	return data[:n], err
}

// outline returns the blocks of a file with their indices, but without their events. It reads only the indices, and the blocks
// that have none. It fails if that does not show what is in the file, because a part is damaged.
func outline(f *io.SectionReader) ([]*block, bool) {
	type part struct {
		at, size int64
		kind     byte
	}
	var parts []part
	begun := 0 // blocks
	for head, at := make([]byte, partHead), int64(0); at < f.Size(); {
		if _, err := f.ReadAt(head, at); err != nil || string(head[:len(blockMagic)]) != blockMagic || head[3] > blockVersion {
			return nil, false
		}
		p := part{at, int64(partHead) + int64(binary.LittleEndian.Uint32(head[5:])), head[4]}
		if at += p.size; at > f.Size() {
			return nil, false
		}
		if p.kind == partAll || p.kind == partNotable {
			begun++
		}
		parts = append(parts, p)
	}
	var all, notable bool // an index of such a block follows
	for i, p := range slices.Backward(parts) {
		indexed := false
		switch p.kind {
		case partIndex:
			all = true
		case partIndexNotable:
			notable = true
		case partAll, partMore:
			indexed = all
		case partNotable, partMoreNotable:
			indexed = notable
		}
		if indexed {
			parts[i].size = 0
		}
	}
	var data []byte
	for _, p := range parts {
		if p.size == 0 {
			data = appendPart(data, p.kind, nil)
			continue
		}
		at := len(data)
		data = append(data, make([]byte, p.size)...)
		if _, err := f.ReadAt(data[at:], p.at); err != nil && !errors.Is(err, io.EOF) {
			return nil, false
		}
	}
	_, blocks, _, lost := readBlocks(data)
	return blocks, lost == nil && len(blocks) == begun
}

// goOn makes the next events, which must be the first, and the next calls follow those of earlier recordings.
func (r *Recorder) goOn(in *inheritance) {
	if r.earlier = *in; in.last.Last == 0 {
		return
	}
	r.ring.mu.Lock()
	r.ring.seq, r.ring.oldest.first = in.last.Last, in.last.Last+1
	r.ring.mu.Unlock()
	r.archive.ring.next = in.last.Last + 1
	r.calls.Store(in.last.Call)
	r.restored = in.last.Last
	if in.last.At != 0 {
		r.kept = time.Unix(0, in.last.At)
		r.began = r.began.Add(-time.Duration(in.last.Mono) - max(time.Since(r.kept), 0)) // so that Mono continues from there
	}
}

// Lacks returns those of the changes, the latest that earlier processes have noted, that came after what r has restored.
func (r *Recorder) Lacks(latest []Change) []Change {
	in := &r.earlier
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
	r.archive.take(takeAtOnce)
}

// adopt puts blocks of another archive on the shelves, before those of this process.
func (a *archive) adopt(blocks []*block) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var last uint64
	for _, b := range blocks {
		last = max(last, b.Last)
	}
	for _, b := range blocks {
		s := &a.all
		if b.kind == partNotable {
			s = &a.notable
		}
		s.blocks = slices.DeleteFunc(s.blocks, func(has *block) bool { // the next file has all of a block, or has it again
			return has.First >= b.First && has.Last <= b.Last
		})
		at := slices.IndexFunc(s.blocks, func(has *block) bool { return has.First > last })
		if at < 0 {
			at = len(s.blocks)
		}
		s.blocks = slices.Insert(s.blocks, at, b)
	}
	a.all.forget()
	a.notable.forget()
}

// Snapshot returns all events, for [Recorder.Restore] in another process, and a follower of those that come later, for a
// [Passage] there. h describes the events.
func (r *Recorder) Snapshot(h *FileHeader) (data []byte, rest *Follower) {
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
	content, _ := json.Marshal(h) // cannot fail: it holds strings and numbers
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
	a.whole()
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
	rec := NewRecorder(Config{})
	shelf := &rec.archive.all
	shelf.max, rec.archive.notable.max = maxRecord, maxRecord // all of the file
	rec.archive.adopt(blocks)
	want := chosen(data, shelf)
	rec.Close()
	d.f, d.atEnd = rec.follower(true, 0, want), atEnd
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
