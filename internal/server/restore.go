package server

import (
	"time"

	"github.com/criproxy/criproxy/internal/server/listen"
)

// restoreInterval is how often missing socket files are restored. No client waits longer for one.
const restoreInterval = time.Second

// restoreSocketFiles restores missing socket files once. It compares files instead of watching them:
// docs/evidence/rationale.md says why. It reports whether the sockets still belong to this process. A restored socket is a new one, at the same path: systemd, which holds the old one over a restart, gets
// the new one in its place. While a reload or a handover is under way, it restores nothing: another process may get the sockets.
func (p *Proxy) restoreSocketFiles() bool {
	if !p.reloading.TryLock() {
		return true
	}
	defer p.reloading.Unlock()
	if p.stopped {
		return false
	}
	for _, one := range p.listening() {
		if f, ok := one.listener.(*listen.File); ok && f.Restore() && listen.Supervised() {
			listen.RemoveSocket(f.Path) // the old socket, which has no file any more
			listen.StoreSocket(f, f.Path)
		}
	}
	return true
}

// unreachable returns why no client can connect to the main socket, or nil if clients can. Only the main one counts: kubelet
// uses it, and without it the node does not work.
func (p *Proxy) unreachable() error {
	all := p.sockets()
	if len(all) == 0 {
		return nil
	}
	_, err := all[0].FileState()
	return err
}
