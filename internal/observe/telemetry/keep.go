package telemetry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// The recording outlives the process: it passes to a process that takes over, and files keep it
// for the process that starts after a crash. Neither has secrets. A recording with secrets
// (UnsafeRaw) stays in this process.

// keepInterval is how often Keep writes the recording. A crash loses the events since then.
const keepInterval = 5 * time.Second

// keeps reports whether the recording may leave the memory of this process.
func (r *Recording) keeps() bool { return r.rec != nil && !r.cfg.UnsafeRaw }

// Snapshot returns the recorded events, for [Recording.Restore] in another process, and a follower of those that come
// later, for [Recording.Passage] there. All is nil if the recording may not leave this process.
func (r *Recording) Snapshot() ([]byte, *capture.Follower) {
	if !r.keeps() {
		return nil, nil
	}
	h := r.Header()
	return r.rec.Snapshot(&h)
}

// Passage takes what the process before this one records after its snapshot, or returns nil if nothing is recorded.
func (r *Recording) Passage() *capture.Passage {
	if !r.keeps() {
		return nil
	}
	return capture.NewPassage(r.rec)
}

// Restore adds the events that other processes have recorded. The caller must call it before anything is recorded.
func (r *Recording) Restore(snapshots ...[]byte) error {
	if !r.keeps() {
		return nil
	}
	return r.rec.Restore(snapshots...)
}

// Kept returns the time of the last event of a call of other processes that the recording has, zero if it has none.
func (r *Recording) Kept() (t time.Time) {
	if r.rec != nil {
		t = r.rec.Kept()
	}
	return t
}

// keptFile returns the path of the file in which process pid keeps its recording.
func keptFile(dir string, pid int) string {
	return filepath.Join(dir, fmt.Sprintf("recorder-%d.blocks", pid))
}

// RestoreFiles is [Recording.Restore] for the files that crashed processes have left in a folder, most of which it reads later,
// with what the function read returns, if it is not nil: an hour of calls must not delay the next one.
func (r *Recording) RestoreFiles(dir string, read func(io.ReaderAt) io.ReaderAt) {
	if !r.keeps() {
		return
	}
	var paths []string
	var opened []*os.File
	var files []*io.SectionReader
	for _, path := range keptBy(dir) {
		f, info, err := openRegular(path, os.O_RDONLY)
		if err != nil {
			continue
		}
		from := io.ReaderAt(f)
		if read != nil {
			from = read(f)
		}
		paths, opened, files = append(paths, path), append(opened, f), append(files, io.NewSectionReader(from, 0, info.Size()))
	}
	r.rec.RestoreLater(files, func(err error) {
		for _, f := range opened {
			_ = f.Close() // it was only read
		}
		if unread := new(fs.PathError); !errors.As(err, &unread) { // otherwise the next process tries again
			r.restored = paths
		}
		if err != nil {
			klog.ErrorS(err, "Some of the latest errors and calls of the previous process cannot be read")
		}
	})
}

// complete records those of the changes, the latest that earlier processes have noted, that came after the recording that
// they have left.
func (r *Recording) complete(latest []capture.Change) {
	if r.rec == nil {
		return
	}
	for _, c := range r.rec.Lacks(latest) {
		r.rec.Inherit(c)
	}
}

// keptBy returns the files of processes that have ended, the oldest first.
func keptBy(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "recorder-*.blocks"))
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

// isCriproxy reports whether process pid runs, and has the name of this one. A process that was killed stays as a zombie until
// its parent waits for it, which can be later than the start of the next process: it does not run.
func isCriproxy(pid int) bool {
	ours, _, err := host.Command("/proc/self")
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	theirs, _, err := host.Command(fmt.Sprintf("/proc/%d", pid))
	state := host.State(pid)
	return err == nil && ours == theirs && state != "" && state != "Z" && state != "X"
}

// Keep writes the recording to files in a folder until stop is closed. It then removes the files if
// passedOn reports that another process has got the recording.
func (r *Recording) Keep(dir string, stop <-chan struct{}, passedOn func() bool) {
	if !r.keeps() {
		return
	}
	path := keptFile(dir, os.Getpid())
	k := capture.NewKeeper(r.rec, path, r.Header)
	var logged string     // the latest failure, empty after a success
	next := time.After(0) // what this process has from the one before must not wait
	inherited := r.rec.Inherited() > 0
	for open := true; open; {
		write := k.Write
		select {
		case <-next:
			next = time.After(keepInterval)
		case <-stop:
			write, open = k.Close, false
		}
		switch err := recovery.Do("keeping the recording", write); {
		case err == nil:
			logged = ""
			for _, one := range r.restored { // what they have is in the new file
				if one != path {
					_ = os.Remove(one)
				}
			}
			if r.restored = nil; inherited { // what it took to read that is garbage now
				debug.FreeOSMemory()
				inherited = false
			}
		case err.Error() != logged:
			logged = err.Error()
			klog.ErrorS(err, "The recording cannot be written; a crash would lose it", "file", path)
		}
	}
	if passedOn() {
		k.Remove()
	}
}
