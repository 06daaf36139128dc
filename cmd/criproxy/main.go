// Command criproxy is one CRI socket in front of several container runtimes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// A command is one of criproxy's subcommands.
type command struct {
	name  string
	usage string // behind the name
	short string // what it is for, in a line
	run   func(ctx context.Context, args []string, out, errOut io.Writer) error
}

// commands is the table of subcommands. The first one is the default, so that
// the command line of the original CRI Proxy keeps working.
func commands() []command {
	return []command{
		{"serve", "[flags]", "stand between kubelet and the runtimes (the default)", serve},
		{"check", "[flags]", "try a configuration, and show what becomes of each method", check},
		{"status", "[-json]", "show how a running criproxy is doing", showStatus},
		{"doctor", "[flags]", "look at this node, and say what would not work and how to mend it", examineNode},
		{"hooks", "[-json]", "show the plugins of a running criproxy", showHooks},
		{"demo", "[-once]", "see it work: two runtimes in memory, a client, and the proxy between", demo},
		{"tail", "[flags]", "show calls as they happen", tail},
		{"dump", "[-o FILE]", "save the latest calls, which a running criproxy has in memory", dump},
		{"tap", "-connect PATH -listen PATH", "show the calls to one server of any gRPC API", tap},
		{"view", "[flags] FILE", "show the calls in a file", view},
		{"convert", "FILE TO", "turn a file of calls into another format, which its ending says", convert},
		{"replay", "FILE -to PATH", "make recorded calls again, and show in what the answers differ", replayCalls},
		{"fixture", "FILE -listen PATH", "answer calls as in a file, without a runtime", fixture},
		{"wireshark-profile", "DIR", "teach Wireshark the names of fields", wiresharkProfile},
		{"install", "-takeover PATH", "stand at the path of containerd's own socket", install},
		{"uninstall", "", "take that back", uninstall},
		{"version", "", "print the version", printVersion},
	}
}

// killBound is how long any command takes to end that was told to. It is longer than
// exitBound, after which serve says what it waits for, and the log is read.
const killBound = exitBound + 2*lastRead

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	errOut := os.Stderr // which serve replaces for its log
	context.AfterFunc(ctx, func() { time.AfterFunc(killBound, func() { kill(errOut) }) })
	err := run(ctx, os.Args[1:], os.Stdout, errOut)
	stop()
	klog.Flush()
	os.Exit(exitCode(err, errOut))
}

// kill ends the process, with a word if anybody reads it.
func kill(errOut io.Writer) {
	said := make(chan struct{})
	go func() {
		printError(errOut, fmt.Errorf("not ended %s after it was told to; ending now", killBound))
		close(said)
	}()
	select {
	case <-said:
	case <-time.After(lastRead):
	}
	os.Exit(1)
}

// run is main without the process: what tests call.
func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	all := commands()
	name := all[0].name
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if name == "help" {
		return help(out)
	}
	for _, c := range all {
		if c.name == name {
			return c.run(ctx, args, out, errOut)
		}
	}
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	return &usageError{fmt.Errorf("there is no command %q: want one of %s", name, strings.Join(names, ", "))}
}

// usageError is a mistake on the command line.
type usageError struct{ error }

// errReported is the end of a command that has said itself what was wrong.
var errReported = errors.New("reported")

// exitCode prints err for people and returns what the process should return: 2
// for a mistake on the command line, 1 for any other failure.
func exitCode(err error, errOut io.Writer) int {
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errReported):
		return 1
	case errors.As(err, &usage):
		printError(errOut, usage.error)
		fmt.Fprintln(errOut, "criproxy: see criproxy -h")
		return 2
	default:
		printError(errOut, err)
		return 1
	}
}

// printError prints each line of err, which may be several errors joined.
func printError(errOut io.Writer, err error) {
	for _, line := range strings.Split(err.Error(), "\n") {
		fmt.Fprintf(errOut, "criproxy: %s\n", line)
	}
}

func help(out io.Writer) error {
	fmt.Fprint(out, `criproxy is one CRI socket in front of several container runtimes.

Usage:
`)
	for _, c := range commands() {
		fmt.Fprintf(out, "  criproxy %-16s %s\n", strings.TrimSpace(c.name+" "+c.usage), c.short)
	}
	fmt.Fprint(out, `
Flags of serve and check:
`)
	fs, _ := newFlags()
	fs.SetOutput(out)
	printFlags(fs, out)
	fmt.Fprint(out, `
For example, with containerd for all pods but those of RuntimeClass or annotation virtlet.cloud:

  criproxy -connect /run/containerd/containerd.sock,virtlet.cloud:/run/virtlet.sock -listen /run/criproxy.sock
  kubelet --container-runtime-endpoint=unix:///run/criproxy.sock ...
`)
	return flag.ErrHelp
}

// version is set when a release is built.
var version = "devel"

func printVersion(_ context.Context, args []string, out, _ io.Writer) error {
	if len(args) > 0 {
		return &usageError{errors.New("version takes no arguments")}
	}
	fmt.Fprintf(out, "criproxy %s\n", version)
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Fprintf(out, "built with %s\n", info.GoVersion)
		for _, m := range info.Deps {
			if m.Path == "k8s.io/cri-api" || m.Path == "google.golang.org/grpc" {
				fmt.Fprintf(out, "%s %s\n", m.Path, m.Version)
			}
		}
	}
	return nil
}
