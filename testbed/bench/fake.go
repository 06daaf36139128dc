package main

import (
	"context"
	"flag"
	"net"
	"os/signal"
	"syscall"

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
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	return fakecri.New(fakecri.Config{}).ServeOn(ctx, l)
}
