package telemetry

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Changes are in two files of a folder. The newer file becomes the older one when it is full. Each line is a change, but
// for those that say which version of criproxy has written the lines after them.
//
//	{"v":1,"program":"criproxy 1.0.0"}                               what comes from here on is of this version
//	{"time":"...","what":"gone","backend":"kata.io","why":"..."}     one change, as criproxy events prints it
//
// The files are append-only: a line is never changed or removed, but by the rename that replaces the older file, and where a write
// has failed. So a reader needs no lock, and reads what was there when it opened the file.
//
// A file may end in half a line, after a crash or on a full disk, and another process may have written to it meanwhile. So a line
// begins on its own, whatever is before it, and a reader names the lines that it cannot read, and goes on with the next one.
const (
	fileChanges   = 10_000   // that make a file full
	fileBytes     = 16 << 20 // likewise; so many changes take less
	maxChangeLine = 64 << 10
)

// changesFiles returns the paths of the files, the older one first.
func changesFiles(dir string) (older, newer string) {
	return filepath.Join(dir, "changes.1.jsonl"), filepath.Join(dir, "changes.jsonl")
}

// appended is the state of the newer file after this process has written to it. The zero value is that of a process that
// has not written yet. If the size of the file is another one, another process has written meanwhile, and all is counted anew: the
// file itself is the truth, and this only saves reading it at each change.
type appended struct {
	began bool // the file says that this version writes
	size  int64
	lines int
}

// append appends changes to the newer file, and returns when the disk has them. A crash may cut off the last line. After an error
// nobody knows how many are there: see [Changes.compare].
func (a *appended) append(dir string, all []capture.Change) (err error) {
	older, newer := changesFiles(dir)
	f, info, err := openRegular(newer, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if a.size != info.Size() { // another process has written
		if a.lines, err = countLines(f); err != nil {
			return err
		}
		a.began, a.size = false, info.Size()
	}
	if a.lines >= fileChanges || a.size >= fileBytes {
		if err := os.Rename(newer, older); err != nil {
			return err
		}
		*a = appended{}
		return a.append(dir, all)
	}
	var b bytes.Buffer
	if last := make([]byte, 1); a.size > 0 {
		if _, err := f.ReadAt(last, a.size-1); err == nil && last[0] != '\n' {
			b.WriteByte('\n') // after half a line
		}
	}
	if !a.began || a.size == 0 {
		fmt.Fprintf(&b, "{\"v\":%d,\"program\":%q}\n", capture.Version, "criproxy "+config.Version)
	}
	enc := json.NewEncoder(&b)
	for i := range all {
		_ = enc.Encode(&all[i]) // cannot fail: strings, numbers and times
	}
	if _, err := f.Write(b.Bytes()); err != nil {
		_ = f.Truncate(a.size) // so that they are not there twice
		return err
	}
	a.began, a.lines, a.size = true, a.lines+len(all), a.size+int64(b.Len())
	return f.Sync()
}

// countLines counts the lines of a file.
func countLines(f *os.File) (int, error) {
	n, buf := 0, make([]byte, maxChangeLine)
	for {
		got, err := f.Read(buf)
		if n += bytes.Count(buf[:got], []byte("\n")); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// openRegular opens a regular file. Anything else, such as a FIFO, could block for ever.
func openRegular(path string, flags int) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file; remove it", path)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, nil, err
	}
	return f, info, nil
}

// changeFiles are files of changes as they were when they were opened, the older one first. What is written afterwards is not
// read, so a reader ends.
type changeFiles []changeFile

// changeFile is one of them, or why it cannot be opened. Whoever has opened it closes it.
type changeFile struct {
	*os.File
	path string
	info fs.FileInfo
	err  error // why it cannot be opened
}

// openChanges opens the files of a folder. whole is false if the newer one is there and cannot be opened.
func openChanges(dir string) (files changeFiles, whole bool) {
	older, newer := changesFiles(dir)
	for _, path := range []string{older, newer} {
		f, info, err := openRegular(path, os.O_RDONLY)
		if whole = err == nil || errors.Is(err, fs.ErrNotExist); err == nil || !whole {
			files = append(files, changeFile{f, path, info, err})
		}
	}
	return files, whole
}

// close closes the files.
func (files changeFiles) close() {
	for _, f := range files {
		if f.File != nil {
			_ = f.Close() // it was only read
		}
	}
}

// each calls do with each change. Where lines cannot be read, a change of the kind [capture.Unread] stands in their place.
// It fails only if do fails.
func (files changeFiles) each(do func(*capture.Change) error) error {
	for _, f := range files {
		err := error(nil)
		if f.err != nil {
			err = do(unread(f.err.Error(), time.Now()))
		} else {
			err = readChanges(io.LimitReader(f, f.info.Size()), f.path, f.info.ModTime(), do)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unread returns the change that stands for lines that cannot be read. It says that something is missing, and never what: a
// reader must not take silence for "nothing happened".
func unread(why string, at time.Time) *capture.Change {
	return &capture.Change{Time: at, What: capture.Unread, Why: why, PID: os.Getpid()}
}

// readChanges calls do with each change of a file, which was written until the time end. Neighbouring lines that cannot be read for
// the same reason are one change, with the time of the change before them: they were written later than that.
func readChanges(from io.Reader, path string, end time.Time, do func(*capture.Change) error) error {
	r := bufio.NewReaderSize(from, maxChangeLine)
	var before time.Time // of the latest change
	first, why := 0, ""  // of the lines that cannot be read
	flush := func(last int, after time.Time) error {
		if why == "" {
			return nil
		}
		lines := fmt.Sprintf("line %d of %s", first, path)
		if last > first {
			lines = fmt.Sprintf("lines %d to %d of %s", first, last, path)
		}
		if before.IsZero() {
			before = after
		}
		err := do(unread(lines+": "+why, before))
		why = ""
		return err
	}
	version := capture.Version
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		one, reason := decodeLine(line, &version)
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			reason = err.Error()
		case long:
			reason = fmt.Sprintf("longer than %d KiB", maxChangeLine>>10)
		}
		if why != "" && reason != why {
			if err := flush(n-1, one.Time); err != nil {
				return err
			}
		}
		switch {
		case reason != "" && why == "":
			first, why = n, reason
		case reason == "" && one.What != "":
			if err := do(&one); err != nil {
				return err
			}
			before = one.Time
		}
		if err != nil {
			return flush(n, end)
		}
	}
}

// decodeLine returns the change in a line, or why it cannot be read: a line of a newer version is not guessed at. A line that says
// which version has written the lines after it sets version, and has no change; nor has an empty one.
func decodeLine(line []byte, version *int) (one capture.Change, why string) {
	if len(bytes.TrimSpace(line)) == 0 {
		return one, ""
	}
	l := struct {
		Version *int `json:"v"`
		*capture.Change
	}{Change: &one}
	err := json.Unmarshal(line, &l)
	header := err == nil && l.Version != nil && one.What == ""
	if header {
		*version = *l.Version
	}
	switch {
	case err != nil:
		return one, "cut off or damaged"
	case *version > capture.Version || l.Version != nil && *l.Version > capture.Version || one.What != "" && !one.Known():
		return one, "written by a newer criproxy"
	case !header && (one.What == "" || one.Time.IsZero()):
		return one, "cut off or damaged"
	}
	return one, ""
}
