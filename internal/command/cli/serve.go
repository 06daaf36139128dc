package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// asText replaces values in the JSON log with the text of their String method, as in the text log. JSON alone would
// have a number or nothing for codes and backends.
func asText(_ []string, a slog.Attr) slog.Attr {
	if s, ok := a.Value.Any().(fmt.Stringer); ok && a.Value.Kind() == slog.KindAny {
		return slog.String(a.Key, s.String())
	}
	return a
}

// aboutServe describes the command.
const aboutServe = `criproxy serve stands between kubelet and the runtimes. It is the command of a command line without one.
For example, with containerd for all pods but those of RuntimeClass or annotation kata.io:

  criproxy -connect /run/containerd/containerd.sock,kata.io:/run/kata/containerd.sock -listen /run/criproxy.sock
  kubelet --container-runtime-endpoint=unix:///run/criproxy.sock ...

Flags:
`

// Serve is the subcommand that stands between kubelet and the runtimes.
func Serve(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs, f := NewFlags()
	f.help = func() {
		fmt.Fprint(out, aboutServe)
		printServeFlags(out)
	}
	if err := f.parse(fs, args); err != nil {
		return err
	}
	cfg, err := f.readConfig()
	if err != nil {
		return err
	}
	unread, err := NewLog(errOut)
	if err != nil {
		return err
	}
	defer unread.Close()
	unread.Take()
	if f.logFormat == "json" {
		all := slog.Level(math.MinInt8) // klog has already filtered by -v
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: all, ReplaceAttr: asText})))
	}
	for _, w := range cfg.Warnings() {
		klog.Warning("The configuration works, but: " + w)
	}
	if f.given["apiserver"] {
		klog.InfoS("The flag -apiserver is ignored: nothing here talks to the API server")
	}
	// Handle signals before other processes learn of this one: an unhandled signal would end it.
	hup, usr2 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	signal.Notify(usr2, syscall.SIGUSR2)
	defer signal.Stop(hup)
	defer signal.Stop(usr2)
	UseFewCPUs()
	LetTimersBeLate()
	inherited, err := listen.Inherit()
	if err != nil {
		return err
	}
	predecessor, err := server.ReceivePredecessor(inherited.Backends)
	if err != nil {
		return err
	}
	p, err := server.New(cfg, server.Options{File: f.config, Flags: f.overriding(fs), Predecessor: predecessor, Stderr: errOut, Finder: &why.Look{}})
	if err != nil {
		return err
	}
	for _, w := range p.Assumptions() {
		klog.Warning("The configuration works, but: " + w)
	}
	if err := p.Open(inherited); err != nil {
		return err
	}
	var watchers sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer stop()
	r := &watcher{flags: f, proxy: p}
	klog.InfoS("Serving", "socket", cfg.Listen, "admin", cfg.Admin, "backends", len(cfg.Backends), "version", config.Version)
	watchers.Go(func() {
		select {
		case <-p.Serving():
		case <-watching.Done():
		}
		if watching.Err() != nil { // also if it serves: a process that hands over must not end for one that is to stop
			return
		}
		notifyReady(cfg)
		inherited.Serving()
		// Only now is there something to reload or to hand over. Earlier signals and changes of the file wait until
		// here.
		watchers.Go(func() {
			p.Keep(watching, "reading the configuration anew", func() { r.watch(watching, hup) })
		})
		p.Keep(watching, "handing over", func() { watchHandover(watching, p, usr2) })
	})
	err = p.AwaitEnd(ctx, func() error {
		defer watchers.Wait()
		defer stop()
		return p.Run(ctx)
	})
	if errors.Is(err, server.ErrCutOff) {
		return ErrReported
	}
	return err
}

// watchHandover hands over on each value from usr2, until a handover succeeds or ctx ends.
func watchHandover(ctx context.Context, p *server.Proxy, usr2 <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-usr2:
			if err := p.HandOver(ctx); err != nil {
				klog.ErrorS(err, "The handover failed")
				continue
			}
			return
		}
	}
}
