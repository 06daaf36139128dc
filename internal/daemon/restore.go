package daemon

import (
	"context"
	"time"

	"github.com/criproxy/criproxy/internal/listen"
)

// RestoreInterval is how often it is looked whether the socket files are there: no client
// has to wait for longer.
const RestoreInterval = time.Second

// keepSocketFiles makes socket files anew that are gone, until ctx ends or the sockets
// are another process's.
func (p *Proxy) keepSocketFiles(ctx context.Context) {
	tick := time.NewTicker(RestoreInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !p.lookAtSocketFiles() {
			return
		}
	}
}

// lookAtSocketFiles does it once, and reports whether the sockets are still ours.
func (p *Proxy) lookAtSocketFiles() bool {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if p.stopped {
		return false
	}
	for _, one := range p.listening() {
		if f, ok := one.listener.(*listen.File); ok && f.Restore() && listen.Supervised() {
			listen.RemoveSocket(f.Path) // that without a file
			listen.StoreSocket(f, f.Path)
		}
	}
	return true
}

// unreachable returns why nobody can connect to the main socket, nil if that is not so.
func (p *Proxy) unreachable() error {
	all := *p.shown.Load()
	if len(all) == 0 {
		return nil
	}
	_, err := all[0].FileState()
	return err
}
