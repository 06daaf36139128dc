package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/criproxy/criproxy/testbed/runtimes"
)

// registry serves the test images until a signal ends it. It is how up keeps a registry that outlives
// it: a daemon of the same program.
func registry(ctx context.Context, args []string, out, log io.Writer) error {
	flags := newFlags("registry", log)
	app := flags.String("app", "", "the program inside the test images")
	addr := flags.String("addr", "127.0.0.1:0", "address to listen on")
	ready := flags.String("ready", "", "file to write the address to, once everything can be pulled")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: *app, Addr: *addr, Log: log})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "testbed: serving images at", reg.Addr)
	if *ready != "" {
		// A process that waits for the file must never read half of it.
		half := *ready + ".new"
		if err := os.WriteFile(half, []byte(reg.Addr), 0o644); err != nil {
			return fmt.Errorf("testbed: writing the registry's address: %w", err)
		}
		if err := os.Rename(half, *ready); err != nil {
			return fmt.Errorf("testbed: writing the registry's address: %w", err)
		}
	}
	<-ctx.Done()
	return reg.Close()
}
