package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// instances are the runtimes that up starts: criproxy's primary and a second one, with the names that
// clients see.
var instances = []struct{ name, version string }{
	{"primary", "1.7"},
	{"two.test", "2.4"},
}

// A place is the folder of up, which holds the files of all daemons.
type place struct{ dir string }

func (p place) at(name string) string       { return filepath.Join(p.dir, name) }
func (p place) instance(name string) string { return p.at(name) }
func (p place) proxySocket() string         { return p.at("criproxy.sock") }
func (p place) registryAddr() string        { return p.at("registry.addr") }

func (p place) daemon(name string) host.Process {
	return host.NewProcess(name, p.at(name))
}

func up(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := newFlags("up", progress)
	dir := flags.String("dir", defaultDir, "folder for all files; its path has at most about 60 letters")
	proxy := flags.String("proxy", "", "criproxy to start in front of the two; it gets the arguments that follow the flags")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if *proxy == "" && flags.NArg() > 0 {
		return fmt.Errorf("testbed: up: unexpected argument %q (arguments go to the proxy, but there is no -proxy)", flags.Arg(0))
	}
	if reasons := testbed.Requirements(); len(reasons) > 0 {
		return errors.Join(reasons...)
	}
	for _, note := range host.Notes() {
		fmt.Fprintln(progress, "testbed: note:", note)
	}
	bin, err := build.Get(ctx, progress)
	if err != nil {
		return err
	}
	p, err := newPlace(*dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(p.at("registry.log")); err == nil {
		return fmt.Errorf("testbed: %s is up or half up (see: testbed status -dir %[1]s; remove it with: testbed down -dir %[1]s)", p.dir)
	}
	if err := p.start(ctx, bin, *proxy, flags.Args()); err != nil {
		return errors.Join(err, p.destroy(ctx)) // leave nothing half up
	}
	return p.welcome(out, *proxy != "")
}

// newPlace makes the folder and returns it by its absolute name.
func newPlace(dir string) (place, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = host.ClaimDir(dir)
	}
	return place{dir}, err
}

func (p place) start(ctx context.Context, bin build.Binaries, proxy string, extra []string) error {
	addr, err := p.startRegistry(ctx, bin)
	if err != nil {
		return err
	}
	errs := make([]error, len(instances))
	var all sync.WaitGroup
	for i, instance := range instances {
		all.Go(func() {
			_, errs[i] = runtimes.StartContainerd(ctx, runtimes.Config{
				Name: instance.name, Version: instance.version, Dir: p.instance(instance.name),
				Binaries: bin, Registry: addr,
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := p.writePlay(bin.Crictl, addr, proxy != ""); err != nil {
		return err
	}
	if proxy == "" {
		return nil
	}
	return p.startProxy(ctx, proxy, extra)
}

// startRegistry runs this program's command registry in the background and returns the registry's address.
func (p place) startRegistry(ctx context.Context, bin build.Binaries) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("testbed: finding this program: %w", err)
	}
	daemon := p.daemon("registry")
	if err := daemon.Start([]string{self, "registry", "-app", bin.App, "-ready", p.registryAddr()}, os.Environ()); err != nil {
		return "", err
	}
	var addr []byte
	err = daemon.Await(ctx, "to serve", func() (err error) {
		addr, err = os.ReadFile(p.registryAddr())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, daemon.LogTail(10))
	}
	return string(addr), nil
}

func (p place) startProxy(ctx context.Context, path string, extra []string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	var connect string
	for i, instance := range instances {
		rt, err := runtimes.Open(p.instance(instance.name))
		if err != nil {
			return err
		}
		if i > 0 {
			connect += "," + instance.name + ":"
		}
		connect += rt.Socket()
	}
	daemon := p.daemon("criproxy")
	argv := append([]string{path, "-v", "3", "-logtostderr", "-connect", connect, "-listen", p.proxySocket()}, extra...)
	if err := daemon.Start(argv, os.Environ()); err != nil {
		return err
	}
	return runtimes.WaitReady(ctx, daemon, p.proxySocket())
}
