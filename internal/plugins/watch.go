package plugins

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long the folder must be quiet before the package reads it: most
	// programs write a file in several steps.
	settle = 5 * time.Millisecond
	// pollEvery is how often the package reads the folder if it cannot watch it: the folder does
	// not exist, or the system has no more watches. A folder that it watches it reads
	// every pollLinksEvery, because files may be links to other places.
	pollEvery      = time.Second
	pollLinksEvery = 10 * time.Second
)

// follow reads the folder whenever it changes, until ctx ends.
func (p *Plugins) follow(ctx context.Context) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		p.report(ctx, Trouble{What: "changes of the folder of plugins take effect up to a second late: it cannot be watched", Err: err})
		w = &fsnotify.Watcher{} // its channels are nil, and never ready
	} else {
		defer w.Close() // the error would change nothing
	}
	f := follower{path: p.folder.path, watcher: w, broken: err != nil}
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	last := time.Time{}
	for {
		f.attend()
		again := p.reload(time.Now())
		last = time.Now()
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-w.Errors: // events were lost
				waiting = false
			case <-w.Events:
				drain(ctx, w)
				waiting = false
			case now := <-ticker.C:
				waiting = f.attends() && !again && now.Sub(last) < pollLinksEvery
			}
		}
	}
}

// drain waits until the folder has been quiet for a moment, but not for ever.
func drain(ctx context.Context, w *fsnotify.Watcher) {
	end := time.After(10 * settle)
	for {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-time.After(settle):
			return
		case <-w.Events:
		}
	}
}

// follower keeps a watch on a folder that may be removed and created.
type follower struct {
	path    string
	watcher *fsnotify.Watcher
	broken  bool
	watched os.FileInfo // the folder that is watched; nil if none is
}

// attend watches the folder that exists now.
func (f *follower) attend() {
	if f.broken || f.attends() {
		return
	}
	if f.watched != nil {
		_ = f.watcher.Remove(f.path) // the folder is gone: the error does not matter
		f.watched = nil
	}
	info, err := os.Stat(f.path)
	if err == nil && f.watcher.Add(f.path) == nil {
		f.watched = info
	}
}

// attends reports whether the folder that exists now is the one that is watched.
func (f *follower) attends() bool {
	if f.watched == nil {
		return false
	}
	info, err := os.Stat(f.path)
	return err == nil && os.SameFile(f.watched, info) && slices.Contains(f.watcher.WatchList(), f.path)
}
