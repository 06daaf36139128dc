package main

import (
	"context"
	"errors"
	"flag"
	"os/signal"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/internal/fakecri"
)

// serveFake is the process of a runtime in memory that implements all of CRI.
func serveFake(args []string) error {
	fs := flag.NewFlagSet("fake", flag.ContinueOnError)
	socket := fs.String("socket", "", "where to listen")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rt := fakecri.New(fakecri.Config{})
	go func() {
		for ctx.Err() == nil {
			time.Sleep(time.Second)
			rt.ForgetCalls() // there are many
		}
	}()
	if err := rt.Serve(ctx, *socket); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
