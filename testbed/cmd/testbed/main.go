// Command testbed starts real container runtimes on this machine for experiments, and takes them down
// again:
//
//	testbed up       start two containerds, 1.7 and 2.4, an image registry, and criproxy in front of them
//	testbed status   show which of these are alive
//	testbed down     remove everything
//	testbed build    only build the runtimes, and print where they are
//	testbed lacks    print why this machine cannot run them, or nothing
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// defaultDir is short, because it holds sockets, and is gone after a reboot, like the mounts in it.
const defaultDir = "/run/criproxy-testbed"

const usage = `usage: testbed COMMAND [FLAGS]

  build [COMPONENT...]         build the runtimes, or what is named, and print where they are
  lacks                        print why this machine cannot run containers or a kubelet, or nothing
  up [-dir DIR] [-proxy PATH]  start them in the background, criproxy too if it is given
  status [-dir DIR]            tell what is alive
  down [-dir DIR] [-all]       take down what is in DIR, or all there is on this machine

Run "testbed COMMAND -h" for the flags of a command.
`

// commands get their arguments without their name. They write results to out, and progress to err.
var commands = map[string]func(ctx context.Context, args []string, out, err io.Writer) error{
	"build":    buildAll,
	"lacks":    lacks,
	"up":       up,
	"status":   status,
	"down":     down,
	"registry": registry, // what up runs in the background
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, err io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(err, usage)
		return flag.ErrHelp
	}
	command, known := commands[args[0]]
	if !known {
		fmt.Fprint(err, usage)
		return fmt.Errorf("testbed: unknown command %q", args[0])
	}
	return command(ctx, args[1:], out, err)
}

// newFlags returns a flag set that returns errors instead of ending the program.
func newFlags(name string, err io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet("testbed "+name, flag.ContinueOnError)
	flags.SetOutput(err)
	return flags
}

func buildAll(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := newFlags("build", progress)
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	bin, err := build.Get(ctx, progress, flags.Args()...)
	if err != nil {
		return err
	}
	for _, version := range []string{"1.7", "2.4"} {
		if dir := bin.Containerd[version]; dir != "" {
			fmt.Fprintf(out, "containerd-%s\t%s\n", version, dir)
		}
	}
	for _, b := range []struct{ name, path string }{
		{"runc", bin.Runc}, {"noseccomp", bin.NoSeccomp}, {"cni", bin.CNI}, {"crictl", bin.Crictl}, {"app", bin.App}, {"kubelet", bin.Kubelet}, {"nerdctl", bin.Nerdctl},
	} {
		if b.path != "" {
			fmt.Fprintf(out, "%s\t%s\n", b.name, b.path)
		}
	}
	return nil
}

func lacks(_ context.Context, args []string, out, progress io.Writer) error {
	if err := newFlags("lacks", progress).Parse(args); err != nil {
		return flag.ErrHelp
	}
	for _, reason := range append(host.Requirements(), append(host.KubeletRequirements(), build.Requirement())...) {
		if reason != nil {
			fmt.Fprintln(out, reason)
		}
	}
	return nil
}
