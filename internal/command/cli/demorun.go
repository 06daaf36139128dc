// This file shows criproxy at work: it runs two runtimes in memory, criproxy in front of them, and a client that
// prints its calls and their results.

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/criproxy/criproxy/internal/command/fakecri"
	"github.com/criproxy/criproxy/internal/proxy/daemon"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// demoBackend is the name of the demo's second runtime.
const demoBackend = "beta.io"

// outageTime is how long the second runtime stays down: long enough to be visible in a timeline.
const outageTime = 10 * time.Second

// demoOptions select the parts of the demo.
type demoOptions struct {
	Once   bool // runDemo returns after the session
	Idle   bool // runDemo keeps the runtimes and criproxy running without pods and traffic
	Outage bool // the second runtime goes down and comes back
}

// runDemo runs the demo, and prints to out. Unless o.Once is set, it then keeps running, with two pods and a little
// traffic, until ctx ends.
func runDemo(ctx context.Context, o demoOptions, out, errOut io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "criproxy-demo-")
	if err != nil {
		return fmt.Errorf("making a folder for sockets: %w", err)
	}
	defer os.RemoveAll(dir)

	cfg := &config.Config{
		Listen:   filepath.Join(dir, "criproxy.sock"),
		StateDir: dir,
		Hooks:    "none", // do not ask the plugins of this machine
		Backends: []config.Backend{
			{Address: filepath.Join(dir, "alpha.sock")},
			{Name: demoBackend, Address: filepath.Join(dir, "beta.sock"), Handlers: map[string]string{"vm": ""}},
		},
	}
	// Stop in reverse order: the proxy, then the runtimes.
	var machines []*machine
	for i, name := range []string{"alpha", "beta"} {
		m := &machine{path: cfg.Backends[i].Address, rt: fakecri.New(fakecri.Config{Name: name, Version: fmt.Sprintf("%d.0.0", i+1), Seed: uint64(i + 1)})}
		defer m.takeAway()
		if err := m.bringBack(); err != nil {
			return fmt.Errorf("starting runtime %s: %w", name, err)
		}
		machines = append(machines, m)
	}
	var proxies sync.WaitGroup
	proxying, stopProxying := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { stopProxying(); proxies.Wait() }()
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
	s := newSession(cc, filepath.Join(dir, "logs"), out)
	err = s.run(ctx)
	if err == nil && o.Outage {
		stay := outageTime
		if o.Once {
			stay = 0 // only the steps count
		}
		err = s.outage(ctx, machines[1], stay)
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C
	} else if err != nil {
		return fmt.Errorf("the session failed: %w", err)
	}
	if o.Once {
		return nil
	}
	fmt.Fprintf(out, "\nThe demo runs until Ctrl-C. Try these commands:\n\n  export CRIPROXY_ADMIN=%[3]s CONTAINER_RUNTIME_ENDPOINT=unix://%[1]s\n"+
		"  %[2]s ui\n  %[2]s pods\n  %[2]s tail -past\n  %[2]s check -connect %[4]s,%[5]s:%[6]s\n",
		cfg.Listen, os.Args[0], cfg.Admin, cfg.Backends[0].Address, demoBackend, cfg.Backends[1].Address)
	if o.Idle {
		fmt.Fprint(out, "  crictl pods\n")
		<-ctx.Done()
		return nil
	}
	return s.keepUp(ctx, machines)
}

// A machine is a runtime that can be stopped and started again, with its pods and images.
type machine struct {
	path string
	rt   *fakecri.Runtime
	stop func() // nil while it is stopped
}

func (m *machine) bringBack() error {
	if m.stop != nil {
		return nil
	}
	streams, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	l, err := fakecri.Listen(m.path)
	if err != nil {
		return errors.Join(err, streams.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = m.rt.ServeStreams(ctx, streams) })
	serving.Go(func() { _ = m.rt.ServeOn(ctx, l) })
	m.stop = func() { cancel(); serving.Wait() }
	return nil
}

func (m *machine) takeAway() {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}
