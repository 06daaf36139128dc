package server

import (
	"os"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// stateDir returns the folder for what outlives this process: the state folder. With a single runtime, for which criproxy
// makes no folder, it is empty if the folder does not exist.
func (p *Proxy) stateDir() string {
	dir := p.Config().StateDir
	if p.shows || dir == "" {
		return ""
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return ""
	}
	return dir
}

// begun adds the change that this process serves: after a handover, or from a start, and then perhaps after a crash. It has the
// addresses of the backends, and says which have moved while no process served.
func (p *Proxy) begun() {
	at := p.addresses()
	c := capture.Change{Time: time.Now(), What: capture.Serving, Why: strings.Join(moved(p.changes.Conditions().At, at), "; "), Addresses: at}
	if p.predecessor != nil {
		c.What = capture.HandedOver
	} else {
		if p.crashes.served {
			c.Missing = p.record.Kept()
		}
		p.beginAfterCrashes(c.Time)
	}
	p.changes.Add(c)
}

// conditions returns the condition of each backend, for the header of a recording: a reader must know what was so at its beginning,
// of which there is no event.
func (p *Proxy) conditions() []capture.HeaderBackend {
	var all []capture.HeaderBackend
	for _, b := range p.backends() {
		h := capture.HeaderBackend{Name: b.String(), Address: b.cfg.Address, Why: b.condition().Why}
		h.State, h.Since, _ = b.state()
		h.Pods, h.Containers = b.concerned()
		all = append(all, h)
	}
	return all
}
