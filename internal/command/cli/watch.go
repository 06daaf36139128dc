package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// lookEvery is how often criproxy reads its configuration file to see whether it has changed.
const lookEvery = 500 * time.Millisecond

// A watcher reads the configuration again when its file changes, or on SIGHUP. Only one goroutine may use it.
type watcher struct {
	flags *Flags
	proxy *server.Proxy

	was    string // the text of the file at the latest look
	unread bool   // the file could not be read then, and that was logged
}

// reload reads the configuration and applies it. If the configuration has mistakes, nothing changes.
func (r *watcher) reload() error {
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

// changed looks at the file, and reports whether it differs from what was last read as a configuration. A file that differs
// from the look before as well is still being written: editors write in several steps.
func (r *watcher) changed() bool {
	data, err := os.ReadFile(r.flags.config) // a missing file counts as an empty one
	for _, lacking := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(err, lacking) {
			if !r.unread {
				klog.ErrorS(err, "The configuration cannot be read, so it is unknown whether it has changed: criproxy goes on trying", "file", r.flags.config)
			}
			r.unread = true
			return false
		}
	}
	writing := r.was != string(data)
	r.was, r.unread = string(data), false
	return !writing && r.was != r.flags.content
}

// watch reloads the configuration when its file changes, and on each value from hup, until ctx ends.
func (r *watcher) watch(ctx context.Context, hup <-chan os.Signal) {
	var look <-chan time.Time // nil without a file
	if r.flags.config != "" {
		look = time.Tick(lookEvery)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
			if r.changed() {
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
