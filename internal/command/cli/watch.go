package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// settle is how long the folder of the configuration must be unchanged before criproxy reads the file again: editors
// write in several steps.
const settle = 200 * time.Millisecond

// patience is how long changes in that folder may go on before criproxy reads the file all the same: the file may lie
// beside a log.
const patience = time.Second

// A watcher reads the configuration again when its file changes, or on SIGHUP.
type watcher struct {
	flags *Flags
	proxy *server.Proxy

	mu sync.Mutex // guards what flags last read
}

// reload reads the configuration and applies it. If the configuration has mistakes, nothing changes.
func (r *watcher) reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	listen.NotifyReloading()
	defer func() { notifyReady(r.proxy.Config()) }()
	changed := ""
	cfg, err := r.flags.readConfig()
	if err != nil {
		err = r.proxy.Refuse(err)
	} else {
		changed, err = r.proxy.Reload(cfg)
	}
	if errors.Is(err, server.ErrStopped) {
		return err // nothing is wrong with the file, which the process that took over reads
	}
	if err != nil {
		klog.ErrorS(err, "The configuration was not reloaded: nothing changes until it is corrected", "file", r.flags.config)
		return err
	}
	for _, w := range append(cfg.Warnings(), r.proxy.Assumptions()...) {
		klog.Warning("The configuration works, but: " + w)
	}
	klog.InfoS("Reloaded the configuration", "file", r.flags.config, "backends", len(cfg.Backends), "changed", changed)
	return nil
}

// notifyReady reports to systemd which socket criproxy serves, for how many runtimes.
func notifyReady(cfg *config.Config) {
	listen.NotifyReady(fmt.Sprintf("Serving %s for %s", cfg.Listen, capture.Count(len(cfg.Backends), "runtime")))
}

// changed reports whether the file differs from what was last read, also if it changed before
// watch began. It returns an error if that is unknown, because this process or the machine has no means to read it.
func (r *watcher) changed() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, err := os.ReadFile(r.flags.config) // a missing file counts as an empty one
	for _, lacking := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(err, lacking) {
			return false, err
		}
	}
	return r.flags.content != string(data), nil
}

// watchLinks makes w watch the folders in which a change can make path lead to another file: editors replace files, and
// the files of a ConfigMap are links to links. A link that changes can add folders, so the caller calls it again then.
func watchLinks(w *fsnotify.Watcher, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for range maxTries { // a link may change before its folder is watched
		folders, watched := host.Folders(path), w.WatchList()
		more := slices.DeleteFunc(slices.Clone(folders), func(dir string) bool { return slices.Contains(watched, dir) })
		for _, dir := range more {
			if err := w.Add(dir); err != nil {
				return err
			}
		}
		for _, dir := range watched {
			if !slices.Contains(folders, dir) {
				_ = w.Remove(dir) // it may be gone
			}
		}
		if len(more) == 0 {
			break
		}
	}
	return nil
}

// maxTries is how often watchLinks looks at links that change all the time.
const maxTries = 8

// watch reloads the configuration when its file changes, and on each value from hup, until ctx ends.
func (r *watcher) watch(ctx context.Context, hup <-chan os.Signal) {
	var events chan fsnotify.Event
	follow := func() error { return nil }
	if r.flags.config != "" {
		w, err := fsnotify.NewWatcher()
		if err == nil {
			defer w.Close()
			follow = func() error { return watchLinks(w, r.flags.config) }
			err = follow()
		}
		if err != nil {
			klog.ErrorS(err, "The configuration is not watched: changes take effect on SIGHUP only", "file", r.flags.config)
		} else {
			events = w.Events
			go func() {
				for err := range w.Errors { // ends when w is closed
					klog.ErrorS(err, "Watching the configuration", "file", r.flags.config)
				}
			}()
		}
	}
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	var first time.Time // of the changes since criproxy last looked; zero if there are none
	unread := false     // the file could not be read, and that was logged
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if first.IsZero() {
				first = time.Now()
			}
			if time.Since(first) < patience {
				quiet.Reset(settle)
			}
		case <-quiet.C:
			first = time.Time{}
			if err := follow(); err != nil && events != nil {
				klog.ErrorS(err, "Watching the configuration", "file", r.flags.config)
			}
			if r.flags.config == "" {
				continue
			}
			changed, err := r.changed()
			if err != nil {
				if !unread {
					klog.ErrorS(err, "The configuration cannot be read, so it is unknown whether it has changed: criproxy tries again every second", "file", r.flags.config)
				}
				quiet.Reset(patience)
			}
			if unread = err != nil; changed {
				_ = r.reload() // which says so itself
			}
		case <-hup:
			if r.flags.config == "" {
				klog.ErrorS(errors.New("there is no -config file"), "Nothing to reload")
				continue
			}
			_ = r.reload() // which says so itself
		}
	}
}
