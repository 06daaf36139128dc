package server

import (
	"slices"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
)

// An assembly is a configuration with the backends made from it. It is immutable, and belongs to whoever loads it from
// Proxy.now. Between build and commit nothing uses it but the reload that made it; discard undoes a build. A backend may belong
// to several assemblies, one after another: reuse finds it by its key.
type assembly struct {
	cfg      *config.Config
	backends []*stack // the primary first
	staged   *Staged
}

// build makes the backends of cfg, and the configuration of the director. It reuses the backends of
// old that need no change. It connects to nothing and changes nothing that is in use, so it may fail.
func (p *Proxy) build(cfg *config.Config, a API, old *assembly) (*assembly, director.Config, error) {
	s := &assembly{cfg: cfg, staged: p.set.Stage(places(cfg), p.folder(cfg), !p.shows && caches(cfg, a.Profile))}
	if p.shows {
		d := director.Config{Tracer: p.tracer(), Panicked: recovery.Report}
		b, err := p.newStack(cfg, 0, d, s)
		if err != nil {
			return nil, d, err
		}
		s.backends, d.Backends = []*stack{b}, []director.Backend{{Conn: b.backend}}
		return s, d, nil
	}
	d := a.Config
	d.MaxMessage = cfg.MaxMessageBytes
	d.NativeNames = cfg.IDs == config.NativeIDs
	d.NewTo = cfg.NewPodsTo
	d.LookInterval = cfg.EventInterval
	d.Withheld = telemetry.LogWithheld()
	d.Mended = telemetry.LogMended()
	d.Mirrored = telemetry.LogMirrored
	d.Tracer = p.tracer()
	d.Pass = dataPaths[cfg.DataPath].pass
	for i := range cfg.Backends {
		b := old.reuse(cfg, i)
		if b == nil {
			var err error
			if b, err = p.newStack(cfg, i, d, s); err != nil {
				s.discard(old)
				return nil, d, err
			}
		}
		s.backends = append(s.backends, b)
		d.Backends = append(d.Backends, b.director(cfg.Backends[i]))
	}
	return s, d, nil
}

// reuse returns the backend of s that equals the i-th of cfg, or nil if there is none. What stackKey leaves out may differ: only
// the director needs that, and gets it from cfg.
func (s *assembly) reuse(cfg *config.Config, i int) *stack {
	if s == nil {
		return nil
	}
	key := stackKey(cfg, i)
	for _, b := range s.backends {
		if b.key == key {
			return b
		}
	}
	return nil
}

// commit brings the backends of s into use, and returns those of old that s does not have, which serve the calls under way
// until they end. It cannot fail.
//
// The links of the new backends are committed first. Then a backend of old whose runtime has another stack now points to that
// one, and a runtime that is taken away reports no condition any more. From then on each runtime has one link that decides its
// condition.
func (s *assembly) commit(old []*stack) (gone []*stack) {
	for _, b := range s.backends {
		if slices.Contains(old, b) {
			continue
		}
		b.link.Commit()
		if err := b.backend.Err(); err != nil {
			klog.ErrorS(err, "The stored cache of a backend cannot be read; lists fail until the backend is back", "backend", b)
		}
	}
	for _, b := range old {
		if slices.Contains(s.backends, b) {
			continue
		}
		gone = append(gone, b)
		if i := slices.IndexFunc(s.backends, func(next *stack) bool { return next.backend == b.backend }); i >= 0 {
			b.next.Store(s.backends[i])
		} else {
			b.link.Retire()
		}
		b.retired.Store(true)
	}
	return gone
}

// discard closes the backends of s, which were never run, except those that old has as well.
func (s *assembly) discard(old *assembly) {
	for _, b := range s.backends {
		if old == nil || !slices.Contains(old.backends, b) {
			_ = b.conn.Close() // nothing has used it
		}
	}
}
