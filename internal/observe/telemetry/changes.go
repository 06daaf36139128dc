package telemetry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Changes keeps what happened to the proxy and its backends: in the recording, in memory, and in two files of a folder,
// which outlive the process and the recording. It is safe for concurrent use.
type Changes struct {
	rec *Recording
	dir string // of the files; empty if there are none

	disk sync.Mutex // held while a change moves from unwritten to a file, and while the files are read
	file appended   // guarded by disk

	mu        sync.Mutex
	latest    []capture.Change // of this process and of those that handed over to it, the oldest first
	dropped   uint64           // how many older ones are no longer in latest
	unwritten []capture.Change
	passedOn  bool          // another process tells
	news      chan struct{} // closed when a change comes
	wake      chan struct{} // has room for one; wakes Keep
}

const (
	latestChanges = 1000 // that memory holds
	changesRetry  = 5 * time.Second
	maxWhy        = 1024 // bytes of a reason
)

// NewChanges returns the changes of a proxy. They are kept in files of the folder dir, unless dir is empty.
func NewChanges(rec *Recording, dir string) *Changes {
	return &Changes{rec: rec, dir: dir, news: make(chan struct{}), wake: make(chan struct{}, 1)}
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
	if err := c.file.append(c.dir, waiting); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwritten = c.unwritten[min(len(waiting), len(c.unwritten)):]
	return nil
}

// each calls do with the changes since a time: those in the files, and those that are not there yet. They come in the order
// in which they were told, whatever the clock said. It returns the number of the next change that comes.
func (c *Changes) each(since time.Time, do func(*capture.Change) error) (next uint64, err error) {
	files, rest, next := c.now()
	defer files.close()
	all := func(one *capture.Change) error {
		if one.Time.Before(since) {
			return nil
		}
		return do(one)
	}
	if err := files.each(all); err != nil {
		return next, err
	}
	for i := range rest {
		if err := all(&rest[i]); err != nil {
			return next, err
		}
	}
	return next, nil
}

// now returns the files as they are now, which the caller must close, the changes that they lack, and the number of the
// next change that comes.
func (c *Changes) now() (files changeFiles, rest []capture.Change, next uint64) {
	c.disk.Lock()
	defer c.disk.Unlock()
	var whole bool
	if c.dir != "" {
		files, whole = openChanges(c.dir)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if rest = c.unwritten; !whole {
		rest = c.latest
	}
	return files, slices.Clone(rest), c.dropped + uint64(len(c.latest))
}

// Replay calls do with the changes of the files, which the processes before this one have told, and adds to the recording
// those that it lacks, because a crash has cut off its end. It must be called before Add.
func (c *Changes) Replay(do func(*capture.Change)) {
	if c.dir == "" {
		return
	}
	var latest []capture.Change
	_, _ = c.each(time.Time{}, func(one *capture.Change) error { // fails only if do fails
		if one.What != capture.Unread {
			do(one)
			latest = append(latest[max(len(latest)+1-latestChanges, 0):], *one)
		}
		return nil
	})
	c.rec.complete(latest)
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
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	next, err := c.each(since, func(one *capture.Change) error { return enc.Encode(one) })
	if err != nil {
		return // the client has left
	}
	var all []capture.Change
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
