package telemetry

import (
	"math"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Keep writes the changes to the files until stop is closed, and then those that are left. A failure is logged once, until
// writing works again; the changes wait meanwhile.
func (c *Changes) Keep(stop <-chan struct{}) {
	if c.dir == "" {
		return
	}
	failed := false
	for {
		_, _, news := c.after(math.MaxUint64)
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
		case <-news:
		case <-stop:
			_ = c.write() // a failure is in the log already, or concerns only the last moment
			return
		}
	}
}

// write writes the changes that wait. They stay if it fails. Only write and compare move written, both with disk. c.mu is not held
// while the disk works: a change that comes meanwhile has a number after written, and waits for the next write.
func (c *Changes) write() error {
	c.disk.Lock()
	defer c.disk.Unlock()
	if c.held || c.dir == "" {
		return nil
	}
	if err := c.compare(); err != nil {
		return err
	}
	c.mu.Lock()
	waiting, written := slices.Clone(c.unwritten()), c.next()
	c.mu.Unlock()
	if len(waiting) == 0 {
		return nil
	}
	if err := c.file.append(c.dir, waiting); err != nil {
		c.unsure = written
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = written
	return nil
}

// compare notes which changes are in a file: another process may have written them, or a write failed that had written all.
// They are there in the order in which they were noted: what came after the last of them is not. A change may be like an earlier
// one: a runtime that gets back a name goes on with the condition that it had. c.disk is held.
func (c *Changes) compare() error {
	if c.unsure == 0 {
		return nil
	}
	files, whole := openChanges(c.dir)
	defer files.close()
	if !whole {
		return files[len(files)-1].err
	}
	c.mu.Lock()
	number := map[capture.ChangeKey]uint64{} // of each that may have to be written, from one on
	written, all := c.written, c.unwritten()
	for i := range all {
		if n := c.next() - uint64(len(all)-1-i); n <= c.unsure {
			number[all[i].Key()] = n
		}
	}
	c.mu.Unlock()
	_ = files.each(func(one *capture.Change) error { // fails only if this fails
		written = max(written, number[one.Key()])
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written = written; !c.held {
		c.unsure = 0
	}
	return nil
}

// each calls do with the changes since a time: those in the files, and those that are not there yet. They come in the order
// in which they were noted, whatever the clock said. It returns the number of the next change that comes.
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
// next change that comes. If the newer file cannot be read, the changes are all that are in memory: some of them may then come
// twice, which is better than a gap.
func (c *Changes) now() (files changeFiles, rest []capture.Change, next uint64) {
	c.disk.Lock()
	defer c.disk.Unlock()
	var whole bool
	if c.dir != "" {
		err := c.compare()
		files, whole = openChanges(c.dir)
		whole = whole && err == nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if rest = c.unwritten(); !whole {
		rest = c.latest
	}
	return files, slices.Clone(rest), c.next()
}

// Replay calls do with the changes of the files, which the processes before this one have noted, and goes on with the
// conditions to which they have led. evidence has what the latest process knew of them not long before it ended. Replay adds
// to the recording the changes that it lacks, because a crash has cut off its end. It must be called before Add.
//
// Where both know something of a backend, the files count: they are written with each change, the evidence every few seconds.
// But the files forget what is old, and the evidence does not: it has the condition of a backend that has not changed for
// months.
func (c *Changes) Replay(evidence Conditions, do func(*capture.Change)) {
	if c.dir == "" {
		return
	}
	var latest []capture.Change
	now := Conditions{At: evidence.At}
	_, _ = c.each(time.Time{}, func(one *capture.Change) error { // fails only if do fails
		if one.What != capture.Unread {
			do(one)
			now.take(one)
			latest = append(latest[max(len(latest)+1-latestChanges, 0):], *one)
		}
		return nil
	})
	c.rec.complete(latest)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conditions = Conditions{newest(now.Backends, evidence.Backends), newest(now.Plugins, evidence.Plugins), now.At}
	c.conditions.goOn(false)
}
