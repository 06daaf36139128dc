package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func down(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := newFlags("down", progress)
	dir := flags.String("dir", defaultDir, "folder that up was given")
	all := flags.Bool("all", false, "take down every instance of the testbed on this machine, including those of tests that are running")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	errs := []error{place{abs}.destroy(ctx)}
	if *all {
		for _, dir := range host.Instances() {
			fmt.Fprintln(progress, "testbed: removing", dir)
			errs = append(errs, host.Clean(dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if *all {
		abs = "the testbed on this machine"
	}
	fmt.Fprintln(out, "testbed: nothing is left of", abs)
	return nil
}

// destroy takes down everything in the folder: first in an orderly way, dependents first, then by force
// whatever is left. It works in any state, half started, crashed or gone.
func (p place) destroy(ctx context.Context) error {
	stop, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p.daemon("criproxy").Terminate(stop)
	errs := make([]error, len(instances))
	var all sync.WaitGroup
	for i, instance := range instances {
		rt, err := runtimes.Open(p.instance(instance.name))
		if err != nil {
			continue // none, or half made: Clean needs no manifest
		}
		all.Go(func() { errs[i] = rt.Destroy(ctx) })
	}
	all.Wait()
	return errors.Join(append(errs, host.Clean(p.dir))...)
}
