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
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
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
	file    *os.File      // nil after an error
	pack    *zstd.Encoder // nil for a file that is not compressed
	out     []byte        // whole events that are not in the file yet
	packed  []byte        // scratch
	flushed time.Time     // when out was last written
	written int64         // the length of the file, without out
	pending int           // events in out
	missing uint64
	counted uint64           // of these, reported in an event that may not be in the file yet
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
	if strings.HasSuffix(cfg.Path, Compressed) {
		w.pack = newEncoder(nil, 512<<10, true)
	}
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
	header := w.cfg.Header()
	head := w.compress(w.enc.Begin(nil, &header))
	file, err := beginFile(w.cfg.Path, files, head)
	if err != nil {
		return fmt.Errorf("creating a capture: %w", err)
	}
	w.file, w.written, w.pending, w.out = file, int64(len(head)), 0, w.out[:0]
	return nil
}

// compress returns b as the file has it: as a frame of its own if it is compressed, so that the file can be read up to there.
func (w *Writer) compress(b []byte) []byte {
	if w.pack == nil {
		return b
	}
	w.packed = w.pack.EncodeAll(b, w.packed[:0])
	return w.packed
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

// beginFile begins a file that only its owner can read, with head. One that exists becomes an older one, of n files in all.
func beginFile(path string, n int, head []byte) (*os.File, error) {
	if err := rotate(path, n); err != nil {
		return nil, fmt.Errorf("making room for the file: %w", err)
	}
	file, err := createPrivate(path)
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(head); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(path))
	}
	return file, nil
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
	if ending == Compressed {
		ending = filepath.Ext(strings.TrimSuffix(path, ending)) + ending
	}
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

// atOnce is how many bytes a Writer writes at once, if events come quickly.
const atOnce = 256 << 10

// append encodes an event, and writes the buffered events if they are many.
func (w *Writer) append(ev *Event) error {
	w.out = w.enc.Append(w.out, ev)
	if w.pending++; len(w.out) < atOnce {
		return nil
	}
	return w.Flush()
}

// giveUp closes the file because of err, and truncates it to whole events.
func (w *Writer) giveUp(err error) error {
	w.missing, w.counted = w.missing+uint64(w.pending), 0
	err = errors.Join(err, w.file.Truncate(w.written), w.file.Close())
	w.file, w.pending, w.out = nil, 0, w.out[:0]
	return fmt.Errorf("writing a capture: %w", err)
}

// Write writes an event. It does not keep ev. After an error the event counts as missing.
func (w *Writer) Write(ev *Event) error {
	var err error
	length := w.written
	if w.pack == nil {
		length += int64(len(w.out))
	}
	if w.file == nil || w.cfg.MaxBytes > 0 && length >= w.cfg.MaxBytes {
		err = w.next(ev)
	}
	w.track(ev)
	if err != nil {
		w.missing++
		return err
	}
	return w.append(ev)
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
		if err := w.append(&again); err != nil {
			return err
		}
	}
	if w.missing > 0 {
		missed := Event{Kind: Missed, Missed: w.missing, Seq: ev.Seq, Time: ev.Time, Mono: ev.Mono}
		if err := w.append(&missed); err != nil {
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
	if w.flushed = time.Now(); len(w.out) > 0 {
		n, err := w.file.Write(w.compress(w.out))
		if err != nil {
			return w.giveUp(err)
		}
		w.written += int64(n)
	}
	if w.out = w.out[:0]; cap(w.out) > 4*atOnce { // of a large message
		w.out = nil
	}
	w.pending = 0
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

// packInterval is how long events for a compressed file gather: the more of them, the shorter the file.
const packInterval = time.Second

// yieldEach is after how many events a Writer lets calls go on.
const yieldEach = 16

// Run writes the events of a follower until ctx ends or the recorder is closed, including those that
// have been recorded by then.
func (w *Writer) Run(ctx context.Context, f *Follower) error {
	f.passes = true
	if e, ok := w.enc.(*jsonEncoder); ok {
		f.known = e.knows
	}
	var ev Event
	for over := false; ; {
		if !f.TryNext(&ev) {
			wait, cancel := ctx, context.CancelFunc(func() {})
			if gather := packInterval - time.Since(w.flushed); w.pack == nil || over || gather <= 0 {
				if err := w.Flush(); err != nil || over {
					return err
				}
			} else if len(w.out) > 0 {
				wait, cancel = context.WithTimeout(ctx, gather)
			}
			err := f.Next(wait, &ev)
			cancel()
			if over = err != nil && (ctx.Err() != nil || errors.Is(err, io.EOF)); err != nil {
				continue // write the events that came meanwhile
			}
		}
		if err := w.Write(&ev); err != nil {
			return err
		}
		if ev.Seq%yieldEach == 0 {
			runtime.Gosched() // calls that could go on must not wait until all is written
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

// Packed returns a writer that compresses to out what is written to it, if the file name path asks for that. The caller
// must close it; that does not close out.
func Packed(out io.Writer, path string) (io.WriteCloser, error) {
	if !strings.HasSuffix(path, Compressed) {
		return unpacked{out}, nil
	}
	w, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		return nil, fmt.Errorf("writing a compressed capture: %w", err)
	}
	return w, nil
}

type unpacked struct{ io.Writer }

func (unpacked) Close() error { return nil }
