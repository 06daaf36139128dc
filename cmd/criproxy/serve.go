package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/listen"
	"github.com/criproxy/criproxy/internal/recovery"
)

// serve is the subcommand that stands between kubelet and the runtimes.
func serve(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs, f := newFlags()
	if err := f.parse(fs, args, out); err != nil {
		return err
	}
	cfg, err := f.readConfig()
	if err != nil {
		return err
	}
	unread, err := newUnreadLog(errOut)
	if err != nil {
		return err
	}
	defer unread.close()
	unread.take()
	for _, w := range cfg.Warnings() {
		klog.Warning(w)
	}
	if f.given["apiserver"] {
		klog.InfoS("The flag -apiserver is ignored: nothing here talks to the API server")
	}
	// Before anybody can know of us: a signal that nobody waits for ends the process.
	hup, usr2 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	signal.Notify(usr2, syscall.SIGUSR2)
	defer signal.Stop(hup)
	defer signal.Stop(usr2)
	useFewCPUs()
	letTimersBeLate()
	makeStateDir(cfg)
	inherited, err := listen.Inherit()
	if err != nil {
		return err
	}
	p, err := newSuccessor(cfg, receiveMemories(inherited.Memories))
	if err != nil {
		return err
	}
	for _, w := range p.director.Assumptions() {
		klog.Warning(w)
	}
	p.stderr = errOut
	if err := p.openFor(cfg, inherited); err != nil {
		p.close()
		return err
	}
	var watchers sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer stop()
	r := newReloader(f, p)
	p.reloader.Store(r)
	klog.InfoS("Serving", "socket", cfg.Listen, "admin", cfg.Admin, "backends", len(cfg.Backends), "version", version)
	p.onServing = func() {
		listen.NotifyReady(cfg)
		inherited.Serving()
		// Not before: there would be nothing to reload or to hand over. Signals wait, and so
		// does a file that has changed.
		watch := func(what string, f func()) {
			watchers.Go(func() { p.parts.do(what, func() { recovery.Keep(watching, what, f) }) })
		}
		watch("reading the configuration anew", func() { r.watch(watching, hup) })
		watch("handing over", func() { p.watchHandover(watching, usr2) })
	}
	return p.awaitEnd(ctx, func() error {
		defer watchers.Wait()
		defer stop()
		return p.run(ctx, nil)
	})
}

// openFor opens all sockets of cfg.
func (p *proxy) openFor(cfg *config.Config, inherited *listen.Inheritance) error {
	if err := p.openAll(inherited); err != nil {
		return err
	}
	if cfg.Admin == "" {
		klog.InfoS("There is no admin socket: criproxy's own commands cannot reach this process")
	} else {
		open := func() (net.Listener, error) { return listen.Unix(cfg.Admin, adminMode, "-admin") }
		l := inherited.Take(cfg.Admin)
		if l == nil {
			var err error
			if l, err = open(); err != nil {
				p.closeSockets()
				return err
			}
		}
		p.admin.listener = listen.KeepFile(cfg.Admin, l, open)
	}
	if p.admin.tcpAt = cfg.Metrics; cfg.Metrics != "" {
		if p.admin.tcp = inherited.Take(cfg.Metrics); p.admin.tcp == nil {
			l, err := net.Listen("tcp", cfg.Metrics)
			if err != nil {
				p.closeSockets()
				p.admin.close()
				return fmt.Errorf("metrics: %w; choose another address with -metrics", err)
			}
			p.admin.tcp = l
		}
	}
	inherited.CloseRest()
	for _, s := range p.listening() {
		listen.StoreSocket(s.listener, s.path)
	}
	return nil
}
