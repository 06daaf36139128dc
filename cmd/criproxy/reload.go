package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/listen"
)

// settle is how long the folder of the configuration has to be quiet before the file
// is read again: editors write in several steps.
const settle = 200 * time.Millisecond

// reloader reads the configuration again when it changes, or when it is told to.
type reloader struct {
	flags *flags
	proxy *proxy

	mu    sync.Mutex // guards what flags last read
	state atomic.Pointer[configState]
}

// configState is how the configuration is doing.
type configState struct {
	File         string    `json:"file,omitempty"`
	Loaded       time.Time `json:"loaded"`                 // when the one in use was
	Reloads      int       `json:"reloads"`                // that worked
	Failures     int       `json:"failures"`               // that did not
	Failed       time.Time `json:"failed,omitzero"`        // when the latest did not, if it did not
	Error        string    `json:"error,omitempty"`        // why
	NeedsRestart []string  `json:"needsRestart,omitempty"` // changes that wait for one
}

func newReloader(f *flags, p *proxy) *reloader {
	r := &reloader{flags: f, proxy: p}
	r.state.Store(&configState{File: f.config, Loaded: time.Now()})
	return r
}

// current returns how the configuration is doing. It does not wait for a reload.
func (r *reloader) current() configState { return *r.state.Load() }

// reload reads the configuration and works by it. If there is anything wrong with it
// nothing changes.
func (r *reloader) reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	listen.NotifyReloading()
	defer func() { listen.NotifyReady(r.proxy.now.Load().cfg) }()
	state := r.current()
	defer func() { r.state.Store(&state) }()
	var waits []string
	cfg, err := r.flags.readConfig()
	if err == nil {
		waits = r.proxy.began.NeedsRestart(cfg)
		makeStateDir(cfg)
		err = r.proxy.reload(cfg)
	}
	if err != nil {
		state.Failures++
		state.Failed, state.Error = time.Now(), err.Error()
		klog.ErrorS(err, "The configuration was not reloaded: nothing changes until it is mended", "file", state.File)
		return err
	}
	state.Reloads++
	state.Loaded, state.Failed, state.Error, state.NeedsRestart = time.Now(), time.Time{}, "", waits
	for _, w := range append(cfg.Warnings(), r.proxy.director.Assumptions()...) {
		klog.Warning(w)
	}
	for _, w := range waits {
		klog.InfoS("A change of the configuration waits for a restart", "change", w)
	}
	klog.InfoS("Reloaded the configuration", "file", state.File, "backends", len(cfg.Backends))
	return nil
}

// changed reports whether the file is another than the one that was last read, be it
// before anybody watched it.
func (r *reloader) changed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, _ := os.ReadFile(r.flags.config) // missing is as good as empty: a change
	return r.flags.content != string(data)
}

// watch reloads the configuration when its file changes, and on each value from hup,
// until ctx ends. It watches the folder: files are replaced, and those of a ConfigMap
// are links of links.
func (r *reloader) watch(ctx context.Context, hup <-chan os.Signal) {
	var events chan fsnotify.Event
	if r.flags.config != "" {
		w, err := fsnotify.NewWatcher()
		if err == nil {
			defer w.Close()
			err = w.Add(filepath.Dir(r.flags.config))
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
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			quiet.Reset(settle)
		case <-quiet.C:
			if r.flags.config != "" && r.changed() {
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
