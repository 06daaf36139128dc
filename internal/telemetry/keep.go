package telemetry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/capture"
	"github.com/criproxy/criproxy/internal/recovery"
)

// The recording outlives the process: it is passed on to one that takes over, and kept in files
// for one that comes after a crash. Secrets are out of both, or neither is done.

// keepInterval is how often the recording is written: a crash loses so much.
const keepInterval = 5 * time.Second

// keeps reports whether the recording may leave the memory of this process.
func (r *Recording) keeps() bool { return r.rec != nil && !r.cfg.UnsafeRaw }

// Snapshot returns the recorded events, for [Recording.Restore] in another process; nil if there are none.
func (r *Recording) Snapshot() []byte {
	if !r.keeps() {
		return nil
	}
	enc := capture.NewEncoder(capture.Binlog, r.Schema)
	h := r.Header()
	b := enc.Begin(nil, &h)
	last := r.rec.Recorded()
	f := r.rec.Follow(true)
	for ev := (capture.Event{}); ev.Seq < last && f.TryNext(&ev); {
		b = enc.Append(b, &ev)
	}
	return b
}

// Restore puts in what another process has recorded. It is called before anything is recorded.
func (r *Recording) Restore(snapshots ...io.Reader) error {
	if !r.keeps() {
		return nil
	}
	var readers []*capture.Reader
	var errs []error
	for _, from := range snapshots {
		one, err := capture.NewReader(from)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		readers = append(readers, one)
	}
	err := r.rec.Restore(func(ev *capture.Event) error {
		for len(readers) > 0 {
			err := readers[0].Next(ev)
			if err == nil {
				return nil
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // of a process that has crashed
				errs = append(errs, err)
			}
			readers = readers[1:]
		}
		return io.EOF
	})
	return errors.Join(append(errs, err)...)
}

// keptFile is where this process keeps what it records.
func keptFile(dir string, pid int) string {
	return filepath.Join(dir, fmt.Sprintf("recorder-%d.binlog", pid))
}

// RestoreFiles is Restore of what a process has kept in a folder before it crashed.
func (r *Recording) RestoreFiles(dir string) error {
	if !r.keeps() {
		return nil
	}
	files := keptBy(dir)
	var snapshots []io.Reader
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err == nil {
			snapshots = append(snapshots, bytes.NewReader(data))
			r.restored = append(r.restored, path)
		}
	}
	return r.Restore(snapshots...)
}

// keptBy are the files of processes that have ended, the oldest first.
func keptBy(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "recorder-*.binlog"))
	files = slices.DeleteFunc(files, func(path string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "recorder-"), ".")
		pid, err := strconv.Atoi(name)
		return err != nil || pid != os.Getpid() && isCriproxy(pid)
	})
	changed := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	slices.SortFunc(files, func(a, b string) int { return int(changed(a) - changed(b)) })
	return files
}

// isCriproxy reports whether a process runs that is called as this one is. One that was killed is there until its parent
// asks how it ended, which can be later than the start of the next.
func isCriproxy(pid int) bool {
	ours, _, err := processOf(os.Getpid())
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	theirs, state, err := processOf(pid)
	return err == nil && ours == theirs && !strings.ContainsAny(state, "ZX")
}

// processOf returns the name and the state of a process, as proc(5) has them.
func processOf(pid int) (name, state string, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end+3 > len(stat) {
		return "", "", fmt.Errorf("/proc/%d/stat has no name and state", pid)
	}
	return string(stat[open+1 : end]), string(stat[end+2]), nil
}

// Keep writes the recording to files in a folder until stop is closed. It removes them then if
// another process has got it, as passedOn says.
func (r *Recording) Keep(dir string, stop <-chan struct{}, passedOn func() bool) {
	if !r.keeps() {
		return
	}
	path := keptFile(dir, os.Getpid())
	f := r.rec.Follow(true)
	var w *capture.Writer
	var logged string // the latest failure, empty after a success
	write := func() error {
		var err error
		if w == nil {
			if w, err = capture.Create(capture.FileConfig{Path: path, Header: r.Header, Schema: r.Schema, MaxBytes: int64(max(r.cfg.FlightRecorder/2, 64<<10)), MaxFiles: 2}); err != nil {
				w = nil
				return err
			}
		}
		var ev capture.Event
		for f.TryNext(&ev) {
			if err := w.Write(&ev); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	before := r.restored // what is in them is in memory, and written anew
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-tick.C:
		case <-stop:
			open = false
		}
		switch err := recovery.Do("keeping the recording", write); {
		case err == nil:
			logged = ""
			for _, one := range before {
				if one != path {
					_ = os.Remove(one)
				}
			}
			before = nil
		case err.Error() != logged:
			logged = err.Error()
			klog.ErrorS(err, "The recording would be lost in a crash", "file", path)
		}
	}
	if w != nil {
		_ = w.Close() // the log has what is missing
	}
	if passedOn() {
		files, _ := filepath.Glob(strings.TrimSuffix(path, ".binlog") + ".*binlog")
		for _, one := range files {
			_ = os.Remove(one)
		}
	}
}
