package server

import (
	"fmt"
	"net"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// Open opens all sockets of the configuration, or takes those that were inherited. If it fails, it
// closes the proxy. It closes an inherited socket that the configuration does not name.
//
// Clients can connect from now on, and wait until Run serves them.
func (p *Proxy) Open(inherited *listen.Inheritance) error {
	p.followPredecessor()
	cfg := p.Config()
	opened, err := p.openNew(cfg, inherited)
	if err != nil {
		p.Close()
		return err
	}
	p.listens.Store(&opened)
	if cfg.Admin == "" {
		klog.InfoS("There is no admin socket: criproxy's own commands cannot reach this process")
	} else {
		open := func() (net.Listener, error) { return listen.Unix(cfg.Admin, admin.Mode, "-admin") }
		l := inherited.Take(cfg.Admin)
		if l == nil {
			var err error
			if l, err = open(); err != nil {
				p.Close()
				return err
			}
		}
		p.admin.Listener = listen.KeepFile(cfg.Admin, l, open)
	}
	if p.admin.TCPAt = cfg.Metrics; cfg.Metrics != "" {
		if p.admin.TCP = inherited.Take(cfg.Metrics); p.admin.TCP == nil {
			l, err := net.Listen("tcp", cfg.Metrics)
			if err != nil {
				p.Close()
				return fmt.Errorf("metrics: %w; choose another address with -metrics", err)
			}
			p.admin.TCP = l
		}
	}
	inherited.CloseRest()
	for _, s := range p.listening() {
		listen.StoreSocket(s.listener, s.path)
	}
	return nil
}

// followPredecessor learns of the calls that the previous process still has under way.
func (p *Proxy) followPredecessor() {
	go func() { // ends when the previous process does, or in close
		_ = recovery.Run("taking over the backends", func() { p.predecessor.follow(p.set) })
	}()
}
