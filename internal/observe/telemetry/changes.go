package telemetry

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// Changes keeps what happened to the proxy and its backends: in the recording, in memory, and in two files of a folder,
// which outlive the process and the recording. It is safe for concurrent use.
type Changes struct {
	rec *Recording
	dir string // of the files; empty if there are none

	disk  sync.Mutex // held while a change moves from unwritten to a file, and while the files are read
	lines int        // of the newer file; -1 if not counted yet

	mu        sync.Mutex
	latest    []capture.Change // of this process and of those that handed over to it, the oldest first
	dropped   uint64           // how many older ones are no longer in latest
	unwritten []capture.Change
	passedOn  bool          // another process tells
	news      chan struct{} // closed when a change comes
	wake      chan struct{} // has room for one; wakes Keep
}

const (
	latestChanges = 1000   // that memory holds
	fileChanges   = 10_000 // that a file holds; there are two
	changesRetry  = 5 * time.Second
	maxWhy        = 1024 // bytes of a reason
)

// NewChanges returns the changes of a proxy. They are kept in files of the folder dir, unless dir is empty.
func NewChanges(rec *Recording, dir string) *Changes {
	return &Changes{rec: rec, dir: dir, news: make(chan struct{}), wake: make(chan struct{}, 1), lines: -1}
}

// Add adds a change. It does not wait for the disk. After [Changes.PassOn] it does nothing.
func (c *Changes) Add(change capture.Change) {
	change.PID = os.Getpid()
	change.Time, change.Since = change.Time.Round(0), change.Since.Round(0) // without the monotonic clock, as in files
	if len(change.Why) > maxWhy {
		change.Why = string(bytes.ToValidUTF8([]byte(change.Why[:maxWhy]), nil)) + "..."
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.passedOn {
		return
	}
	if c.rec.rec != nil {
		c.rec.rec.Change(change)
	}
	c.put(change)
	if c.dir != "" {
		c.unwritten = append(c.unwritten, change)
		c.unwritten = c.unwritten[max(len(c.unwritten)-fileChanges, 0):]
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	close(c.news)
	c.news = make(chan struct{})
}

// put appends to latest. c.mu is held.
func (c *Changes) put(change capture.Change) {
	c.latest = append(c.latest, change)
	if over := len(c.latest) - latestChanges; over > 0 {
		c.latest = slices.Delete(c.latest, 0, over)
		c.dropped += uint64(over)
	}
}

// PassOn says that another process tells from now on what happens.
func (c *Changes) PassOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passedOn = true
}

// Latest returns the latest changes, the oldest first, for another process.
func (c *Changes) Latest() []capture.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.latest)
}

// Restore adds the changes of an earlier process. It must be called before Add.
func (c *Changes) Restore(all []capture.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range all {
		c.put(one)
	}
}

// Keep writes the changes to the files until stop is closed, and then those that are left.
func (c *Changes) Keep(stop <-chan struct{}) {
	if c.dir == "" {
		return
	}
	failed := false
	for {
		err := c.write()
		if err != nil && !failed {
			klog.ErrorS(err, "Changes of conditions cannot be written now; criproxy tries again, and criproxy events shows them meanwhile", "folder", c.dir)
		}
		failed = err != nil
		var again <-chan time.Time
		if failed {
			again = time.After(changesRetry)
		}
		select {
		case <-again:
		case <-c.wake:
		case <-stop:
			_ = c.write() // a failure is in the log already, or concerns only the last moment
			return
		}
	}
}

// write writes the changes that wait. They stay if it fails.
func (c *Changes) write() error {
	c.disk.Lock()
	defer c.disk.Unlock()
	c.mu.Lock()
	waiting := slices.Clone(c.unwritten)
	c.mu.Unlock()
	if len(waiting) == 0 {
		return nil
	}
	if err := c.appendToFile(waiting); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwritten = c.unwritten[min(len(waiting), len(c.unwritten)):]
	return nil
}

// changesFiles returns the paths of the files, the older one first.
func changesFiles(dir string) (older, newer string) {
	return filepath.Join(dir, "changes.1.jsonl"), filepath.Join(dir, "changes.jsonl")
}

// appendToFile appends changes to the newer file. A crash may cut off the last line, which readers skip.
func (c *Changes) appendToFile(all []capture.Change) (err error) {
	older, newer := changesFiles(c.dir)
	if c.lines < 0 || c.lines >= fileChanges {
		data, _ := os.ReadFile(newer) // the file need not exist
		if c.lines = bytes.Count(data, []byte("\n")); c.lines >= fileChanges {
			if err := os.Rename(newer, older); err != nil {
				return err
			}
			c.lines = 0
		}
	}
	f, err := os.OpenFile(newer, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if last := make([]byte, 1); info.Size() > 0 {
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			b.WriteByte('\n') // after half a line
		}
	} else {
		fmt.Fprintf(&b, "{\"v\":%d,\"program\":%q}\n", capture.Version, "criproxy "+config.Version)
	}
	enc := json.NewEncoder(&b)
	for i := range all {
		_ = enc.Encode(&all[i]) // cannot fail: strings, numbers and times
	}
	before := info.Size()
	if _, err := f.Write(b.Bytes()); err != nil {
		_ = f.Truncate(before) // so that they are not there twice
		return err
	}
	c.lines += len(all)
	return f.Sync()
}

// Since returns the changes since a time, the oldest first: those in the files, and those that are not there yet.
func (c *Changes) Since(t time.Time) ([]capture.Change, error) {
	all, _, err := c.since(t)
	return all, err
}

// since is Since, with the number of the next change that comes.
func (c *Changes) since(t time.Time) (all []capture.Change, next uint64, err error) {
	c.disk.Lock()
	defer c.disk.Unlock()
	if c.dir != "" {
		older, newer := changesFiles(c.dir)
		for _, path := range []string{older, newer} {
			found, readErr := readChanges(path)
			all, err = append(all, found...), errors.Join(err, readErr)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	more := c.unwritten
	if c.dir == "" || err != nil {
		all, more = nil, c.latest
	}
	all = slices.DeleteFunc(append(all, more...), func(one capture.Change) bool { return one.Time.Before(t) })
	slices.SortStableFunc(all, func(a, b capture.Change) int { return a.Time.Compare(b.Time) })
	return all, c.dropped + uint64(len(c.latest)), err
}

// readChanges reads a file of changes. It skips lines that are cut off, or that it does not understand.
func readChanges(path string) ([]capture.Change, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []capture.Change
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue // no line of ours is so long
		}
		var one capture.Change
		if json.Unmarshal(line, &one) == nil && one.What != "" {
			all = append(all, one)
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("reading %s: %w", path, err)
		}
	}
}

// after returns the changes from number next on, with the number of the change after them, and a channel that is
// closed when another one comes.
func (c *Changes) after(next uint64) ([]capture.Change, uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := max(next, c.dropped) - c.dropped
	return slices.Clone(c.latest[min(from, uint64(len(c.latest))):]), c.dropped + uint64(len(c.latest)), c.news
}

// Serve answers GET /changes: a line of JSON for each change since the time since, if it is given; with follow=true
// later ones follow.
func (c *Changes) Serve(w http.ResponseWriter, r *http.Request) {
	var since time.Time
	if s := r.FormValue("since"); s != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			http.Error(w, fmt.Sprintf("since=%s: want a time such as 2006-01-02T15:04:05Z", s), http.StatusBadRequest)
			return
		}
	}
	all, next, err := c.since(since)
	if err != nil {
		klog.ErrorS(err, "Changes of conditions from before cannot be read; criproxy events lacks them")
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	for {
		for i := range all {
			if enc.Encode(&all[i]) != nil {
				return // the client has left
			}
		}
		if http.NewResponseController(w).Flush() != nil || r.FormValue("follow") != "true" {
			return
		}
		var news <-chan struct{}
		if all, next, news = c.after(next); len(all) > 0 {
			continue
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}
