package daemon

import (
	"os"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// changesDir returns the folder for the files of changes: the state folder, if the backends have memories there, or if
// it exists. It is empty if there is none.
func (p *Proxy) changesDir() string {
	dir := p.Config().StateDir
	if p.shows || dir == "" {
		return ""
	}
	if len(p.Config().Backends) < 2 { // a single runtime needs no folder, and criproxy does not make one for it
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return ""
		}
	}
	return dir
}

// begun adds the change that this process serves.
func (p *Proxy) begun() {
	what := capture.Serving
	if p.legacy != nil {
		what = capture.HandedOver
	}
	p.changes.Add(capture.Change{Time: time.Now(), What: what})
}

// conditions returns the condition of each backend, for the header of a recording.
func (p *Proxy) conditions() []capture.HeaderBackend {
	var all []capture.HeaderBackend
	for _, b := range p.backends() {
		h := capture.HeaderBackend{Name: b.String(), Address: b.cfg.Address}
		var err error
		if h.State, h.Since, err = b.state(); err != nil {
			h.Why = err.Error()
		}
		all = append(all, h)
	}
	return all
}
