package hook

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long a change in the folder may go on before the folder is read: most
	// programs write a file in several steps.
	settle = 5 * time.Millisecond
	// pollEvery is how often the folder is read where nothing reports changes: there is no folder,
	// or the system has no more watches. Otherwise the folder is read
	// every pollLinksEvery, for files that are links to somewhere else.
	pollEvery      = time.Second
	pollLinksEvery = 10 * time.Second
)

// follow reads the folder whenever it changes, until ctx ends.
func (p *Plugins) follow(ctx context.Context) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		p.report(ctx, Trouble{What: "changes of the folder of plugins take effect up to a second late: it cannot be watched", Err: err})
		w = &fsnotify.Watcher{} // whose channels say nothing
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

// drain waits until nothing has happened for a moment, but not for ever.
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

// follower keeps a watch on a folder that may come and go.
type follower struct {
	path    string
	watcher *fsnotify.Watcher
	broken  bool
	watched os.FileInfo // the folder that is watched, nil if none is
}

// attend watches the folder that is there now.
func (f *follower) attend() {
	if f.broken || f.attends() {
		return
	}
	if f.watched != nil {
		_ = f.watcher.Remove(f.path) // which has gone
		f.watched = nil
	}
	info, err := os.Stat(f.path)
	if err == nil && f.watcher.Add(f.path) == nil {
		f.watched = info
	}
}

// attends reports whether the folder that is there is the one that is watched.
func (f *follower) attends() bool {
	if f.watched == nil {
		return false
	}
	info, err := os.Stat(f.path)
	return err == nil && os.SameFile(f.watched, info) && slices.Contains(f.watcher.WatchList(), f.path)
}
