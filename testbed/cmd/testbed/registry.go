package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// registry serves the test images until a signal ends it. up starts it as a daemon, so that the registry
// outlives up.
func registry(ctx context.Context, args []string, out, log io.Writer) error {
	flags := newFlags("registry", log)
	app := flags.String("app", "", "the program in the test images")
	ready := flags.String("ready", "", "file to which to write the address when all images can be pulled")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: *app, Log: log})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "testbed: serving images at", reg.Addr)
	if err := host.WriteWhole(*ready, []byte(reg.Addr)); err != nil {
		return fmt.Errorf("testbed: writing the registry's address: %w", err)
	}
	<-ctx.Done()
	return reg.Close()
}
