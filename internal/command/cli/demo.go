// This file shows criproxy at work: it runs two runtimes in memory, criproxy in front of them, and a client that
// prints its calls and their results.

package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/command/doctor"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/server"
)

// demoBackend is the name of the demo's second runtime.
const demoBackend = "beta.io"

// outageTime is how long the second runtime stays down: long enough to be visible in a timeline.
const outageTime = 10 * time.Second

// Demo is the subcommand that shows criproxy at work on two runtimes in memory. Unless it has -once, it keeps running, with
// two pods and a little traffic, until ctx ends.
func Demo(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("demo")
	once := fs.Bool("once", false, "exit after the session")
	idle := fs.Bool("idle", false, "keep running, without pods and traffic")
	outage := fs.String("outage", "", "stop the runtime called `NAME`, start it again, and show what a client sees; the only NAME is "+demoBackend)
	about := `demo runs two runtimes in memory, criproxy in front of them, and a client that prints what it sees.
It needs no setup and leaves no files behind. It keeps running, with two pods and a little traffic,
until Ctrl-C.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	if *outage != "" && *outage != demoBackend {
		return &UsageError{fmt.Errorf("demo: -outage %s: the only name is %s%s", *outage, demoBackend, suggest.Nearest(*outage, []string{demoBackend}))}
	}
	dir, err := os.MkdirTemp("", "criproxy-demo-")
	if err != nil {
		return fmt.Errorf("making a folder for sockets: %w", err)
	}
	defer os.RemoveAll(dir)
	defer callsItself(doctor.DemoProcess)()

	at := func(name string) string { return filepath.Join(dir, name) }
	file := at("config.yaml") // for check and doctor
	text := fmt.Appendf(nil, "listen: %q\nstateDir: %q\nhooks: none # do not ask the plugins of this machine\nbackends:\n- address: %q\n- name: %s\n  address: %q\n  handlers: {vm: \"\"}\n",
		at("criproxy.sock"), dir, at("alpha.sock"), demoBackend, at("beta.sock"))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("writing the demo's configuration: %w", err)
	}
	cfg := &config.Config{}
	if err := cfg.Parse(file, text); err != nil {
		return err
	}
	// Stop in reverse order: the proxy, then the runtimes.
	var machines []*machine
	for i, name := range []string{"alpha", "beta"} {
		m := &machine{path: cfg.Backends[i].Address, rt: fakecri.New(fakecri.Config{Name: name, Version: fmt.Sprintf("%d.0.0", i+1), Seed: uint64(i + 1)})}
		if err := m.bringBack(); err != nil {
			return fmt.Errorf("starting runtime %s: %w", name, err)
		}
		defer func() { m.stop() }()
		machines = append(machines, m)
	}
	var proxies sync.WaitGroup
	proxying, stopProxying := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { stopProxying(); proxies.Wait() }()
	if err := server.Check(cfg); err != nil {
		return err
	}
	p, err := server.New(cfg, server.Options{File: file, Finder: &why.Look{}})
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
	fmt.Fprintf(out, "Two runtimes in memory, and criproxy in front of them:\n\n  %-20s %s\n  %-20s %s\n  %-20s %s\n\n",
		"alpha, the primary", cfg.Backends[0].Address, demoBackend, cfg.Backends[1].Address, "criproxy", cfg.Listen)
	s := newSession(cc, filepath.Join(dir, "logs"), out)
	err = s.run(ctx)
	if err == nil && *outage != "" {
		stay := outageTime
		if *once {
			stay = 0 // only the steps count
		}
		err = s.outage(ctx, machines[1], stay)
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C
	} else if err != nil {
		return fmt.Errorf("the session failed: %w", err)
	}
	if *once {
		return nil
	}
	program, err := os.Executable() // another terminal may be in another folder
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe demo runs until Ctrl-C. Try these commands in another terminal:\n\n  export CRIPROXY_ADMIN=%[3]s CONTAINER_RUNTIME_ENDPOINT=unix://%[1]s\n"+
		"  %[2]s ui\n  %[2]s pods\n  %[2]s tail -past\n  %[2]s events\n  %[2]s why\n  %[2]s check\n", cfg.Listen, program, cfg.Admin)
	if *idle {
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
	stop func() // may be called again
}

func (m *machine) bringBack() error {
	l, err := net.Listen("unix", m.path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = m.rt.ServeOn(ctx, l) })
	m.stop = func() { cancel(); serving.Wait() }
	return nil
}
