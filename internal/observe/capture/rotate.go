package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/host"
)

// FileConfig says where a [Writer] writes.
type FileConfig struct {
	Path   string // its extension is the format: see [FormatOf]
	Header func() FileHeader
	Schema *codec.Schema

	// MaxBytes is the length at which the Writer begins a new file. Zero means no limit.
	MaxBytes int64
	// MaxFiles is how many files there may be, the current one included: PATH, and the older
	// ones with a number before the extension. Zero means one.
	MaxFiles int
}

// A Writer writes events to a file that only its owner can read, and begins a new file when that
// is full. Each file can be read alone: it repeats the starts of calls under way. Only one goroutine
// at a time may use a Writer.
//
// After an error, such as a full disk, the file ends with a whole event. The Writer can be used
// again: once there is room it begins a new file, which says how many events are missing, and keeps
// the previous file even if MaxFiles is 1.
type Writer struct {
	cfg     FileConfig
	enc     Encoder
	file    *os.File // nil after an error
	out     *bufio.Writer
	written int64 // to the file and the buffer
	safe    int64 // length of the whole events that are in the file
	pending int   // events that may only be in the buffer
	missing uint64
	counted uint64 // of these, reported in an event that may not be in the file yet
	buf     []byte
	live    map[legID]*Event // :: leg under way → its start
	free    *Event           // of a leg that has ended, for the next one
}

// Create begins a file. A file that already exists becomes an older one.
func Create(cfg FileConfig) (*Writer, error) {
	format, err := FormatOf(cfg.Path)
	if err != nil {
		return nil, err
	}
	w := &Writer{cfg: cfg, enc: NewEncoder(format, cfg.Schema), live: map[legID]*Event{}}
	return w, w.open()
}

func (w *Writer) open() error {
	if err := host.Folder(filepath.Dir(w.cfg.Path), host.Sticky); err != nil {
		return fmt.Errorf("creating a capture: %w; or choose another folder", err)
	}
	files := max(w.cfg.MaxFiles, 1)
	if w.missing > 0 {
		files = max(files, 2)
		if err := w.room(older(w.cfg.Path, files-1)); err != nil {
			return err
		}
	}
	if err := rotate(w.cfg.Path, files); err != nil {
		return fmt.Errorf("making room for a capture: %w", err)
	}
	file, err := createPrivate(w.cfg.Path)
	if err != nil {
		return fmt.Errorf("creating a capture: %w", err)
	}
	header := w.cfg.Header()
	begin := w.enc.Begin(w.buf[:0], &header)
	if _, err := file.Write(begin); err != nil {
		return errors.Join(fmt.Errorf("creating a capture: %w", err), file.Close(), os.Remove(w.cfg.Path))
	}
	w.file, w.written, w.safe, w.pending = file, int64(len(begin)), int64(len(begin)), 0
	if w.out == nil {
		w.out = bufio.NewWriterSize(file, 1<<16)
	} else {
		w.out.Reset(file)
	}
	return nil
}

// room returns an error unless there is room for more than a few events, counting the room of the
// file that goes. Otherwise each new file would replace an older one, for few events.
func (w *Writer) room(goes string) error {
	need := int64(1 << 20)
	if w.cfg.MaxBytes > 0 {
		need = min(need, w.cfg.MaxBytes)
	}
	var fs unix.Statfs_t
	if info, err := os.Stat(goes); err == nil {
		need -= info.Size()
	}
	if err := unix.Statfs(filepath.Dir(w.cfg.Path), &fs); err == nil && int64(fs.Bavail)*fs.Bsize < need {
		return fmt.Errorf("creating a capture: %s lacks room for %d more bytes; free some, or choose another folder", filepath.Dir(w.cfg.Path), need)
	}
	return nil
}

// createPrivate creates a file that only its owner can read.
func createPrivate(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
}

// older returns the name of the i-th older file.
func older(path string, i int) string {
	if i == 0 {
		return path
	}
	ending := filepath.Ext(path)
	return fmt.Sprintf("%s.%d%s", strings.TrimSuffix(path, ending), i, ending)
}

// rotate moves PATH.jsonl to PATH.1.jsonl, and so on, and removes the oldest of n files.
func rotate(path string, n int) error {
	name := func(i int) string { return older(path, i) }
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil // an earlier attempt has moved it, and could not begin a file
	}
	if err := os.Remove(name(n - 1)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for i := n - 2; i >= 0; i-- {
		if err := os.Rename(name(i), name(i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// write writes an encoded event.
func (w *Writer) write(b []byte) error {
	if cap(b) <= 1<<20 {
		w.buf = b[:0]
	}
	if len(b) > w.out.Available() { // so that the file holds whole events
		if err := w.Flush(); err != nil {
			w.missing++ // this event
			return err
		}
	}
	w.pending++
	n, err := w.out.Write(b)
	w.written += int64(n)
	if err != nil {
		return w.giveUp(err)
	}
	return nil
}

// giveUp closes the file because of err, and truncates it to whole events.
func (w *Writer) giveUp(err error) error {
	w.missing, w.counted = w.missing+uint64(w.pending), 0
	err = errors.Join(err, w.file.Truncate(w.safe), w.file.Close())
	w.file, w.pending = nil, 0
	return fmt.Errorf("writing a capture: %w", err)
}

// Write writes an event. It does not keep ev. After an error the event counts as missing.
func (w *Writer) Write(ev *Event) error {
	var err error
	if w.file == nil || w.cfg.MaxBytes > 0 && w.written >= w.cfg.MaxBytes {
		err = w.next(ev)
	}
	w.track(ev)
	if err != nil {
		w.missing++
		return err
	}
	return w.write(w.enc.Append(w.buf[:0], ev))
}

// track remembers which calls are under way.
func (w *Writer) track(ev *Event) {
	id := legID{ev.Call, ev.Leg}
	switch ev.Kind {
	case Start:
		if len(w.live) >= maxStreams {
			clear(w.live) // the follower has missed their ends
		}
		start := w.free
		if w.free = nil; start == nil {
			start = &Event{}
		}
		*start = *ev
		w.live[id] = start
	case End:
		if w.free = w.live[id]; w.free != nil {
			*w.free = Event{}
		}
		delete(w.live, id)
	}
}

// next begins the next file, whose first event will be ev.
func (w *Writer) next(ev *Event) error {
	if err := w.Close(); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	for _, start := range slices.SortedFunc(maps.Values(w.live), func(a, b *Event) int { return int(a.Seq) - int(b.Seq) }) {
		again := *start
		again.Again = true
		if err := w.write(w.enc.Append(w.buf[:0], &again)); err != nil {
			return err
		}
	}
	if w.missing > 0 {
		missed := Event{Kind: Missed, Missed: w.missing, Seq: ev.Seq, Time: ev.Time, Mono: ev.Mono}
		if err := w.write(w.enc.Append(w.buf[:0], &missed)); err != nil {
			return err
		}
		w.counted = w.missing
	}
	w.pending = 0 // repeated starts do not count
	return nil
}

// Flush writes the buffered events to the file.
func (w *Writer) Flush() error {
	if w.file == nil {
		return nil
	}
	if err := w.out.Flush(); err != nil {
		return w.giveUp(err)
	}
	w.safe, w.pending = w.written, 0
	w.missing, w.counted = w.missing-w.counted, 0
	return nil
}

// Close flushes and closes the file.
func (w *Writer) Close() error {
	if err := w.Flush(); err != nil || w.file == nil {
		return err
	}
	err := w.file.Close()
	if w.file = nil; err != nil {
		return fmt.Errorf("closing a capture: %w", err)
	}
	return nil
}

// Run writes the events of a follower until ctx ends or the recorder is closed, including those that
// have been recorded by then.
func (w *Writer) Run(ctx context.Context, f *Follower) error {
	var ev Event
	for over := false; ; {
		if !f.TryNext(&ev) {
			if err := w.Flush(); err != nil || over {
				return err
			}
			if over = f.Next(ctx, &ev) != nil; over {
				continue // write the events that came meanwhile
			}
		}
		if err := w.Write(&ev); err != nil {
			return err
		}
	}
}

// WriteTo writes a whole capture: the header, and the events that read returns until io.EOF.
func WriteTo(out io.Writer, f Format, h *FileHeader, schema *codec.Schema, read func(*Event) error) error {
	enc := NewEncoder(f, schema)
	w := bufio.NewWriterSize(out, 1<<16)
	buf := enc.Begin(nil, h)
	for {
		if _, err := w.Write(buf); err != nil {
			return fmt.Errorf("writing a capture: %w", err)
		}
		var ev Event
		if err := read(&ev); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return errors.Join(err, w.Flush())
		}
		buf = enc.Append(buf[:0], &ev)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("writing a capture: %w", err)
	}
	return nil
}
