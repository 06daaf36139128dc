// Package demo shows criproxy at work: two runtimes in memory, the proxy in front of them, and
// a client that prints what it sees.
package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/daemon"
	"github.com/criproxy/criproxy/internal/fakecri"
)

// demoBackend is the name of the demo's second runtime.
const demoBackend = "beta.io"

// Run shows criproxy at work on two runtimes in memory: it starts them, the proxy in front of
// them, and a client that prints what it sees. Unless once is set it then waits until ctx ends.
func Run(ctx context.Context, once bool, out, errOut io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "criproxy-demo-")
	if err != nil {
		return fmt.Errorf("making a folder for sockets: %w", err)
	}
	defer os.RemoveAll(dir)

	klog.SetLogger(logr.Discard()) // only the session is to be seen
	// What was started last is stopped first: the proxy, then the runtimes.
	var runtimes, proxies sync.WaitGroup
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { stopServing(); runtimes.Wait() }()
	proxying, stopProxying := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { stopProxying(); proxies.Wait() }()

	cfg := &config.Config{
		Listen:   filepath.Join(dir, "criproxy.sock"),
		StateDir: dir,
		Hooks:    "none", // those of this machine are none of its business
		Backends: []config.Backend{
			{Address: filepath.Join(dir, "alpha.sock")},
			{Name: demoBackend, Address: filepath.Join(dir, "beta.sock"), Handlers: map[string]string{"vm": ""}},
		},
	}
	for i, name := range []string{"alpha", "beta"} {
		l, err := fakecri.Listen(cfg.Backends[i].Address)
		if err != nil {
			return fmt.Errorf("starting runtime %s: %w", name, err)
		}
		rt := fakecri.New(fakecri.Config{Name: name, Version: fmt.Sprintf("%d.0.0", i+1), Seed: uint64(i + 1)})
		runtimes.Go(func() { _ = rt.ServeOn(serving, l) })
	}
	if err := daemon.Check(cfg); err != nil {
		return err
	}
	p, err := daemon.New(cfg, daemon.Options{})
	if err != nil {
		return err
	}
	if err := p.Open(nil); err != nil {
		return err
	}
	proxies.Go(func() {
		if runErr := p.Run(proxying); runErr != nil {
			fmt.Fprintf(errOut, "criproxy: %v\n", runErr)
		}
	})

	cc, err := grpc.NewClient("unix:"+cfg.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer cc.Close()
	fmt.Fprintf(out, "Two runtimes in memory, and criproxy in front of them:\n\n  criproxy -connect %s,%s:%s -listen %s\n\n",
		filepath.Base(cfg.Backends[0].Address), demoBackend, filepath.Base(cfg.Backends[1].Address), filepath.Base(cfg.Listen))
	if err := newSession(cc, out).run(ctx); ctx.Err() != nil {
		return nil // Ctrl-C
	} else if err != nil {
		return fmt.Errorf("the session failed: %w", err)
	}
	if once {
		return nil
	}
	fmt.Fprintf(out, "\nIt stays up until Ctrl-C. Play with it:\n\n  crictl --runtime-endpoint unix://%s pods\n  %s tail -past -admin %s\n  %s check -connect %s,%s:%s\n",
		cfg.Listen, os.Args[0], cfg.Admin, os.Args[0], cfg.Backends[0].Address, demoBackend, cfg.Backends[1].Address)
	<-ctx.Done()
	return nil
}
