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
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/proxy/daemon"
)

// A command is one of criproxy's subcommands.
type command struct {
	name  string
	usage string // its arguments, for the help
	short string // what it does, in one line
	run   func(ctx context.Context, args []string, out, errOut io.Writer) error
}

// commands is the table of subcommands. The first one is the default, so that
// the command line of the original CRI Proxy keeps working.
func commands() []command {
	return []command{
		{"serve", "[flags]", "stand between kubelet and the runtimes (the default)", cli.Serve},
		{"check", "[flags]", "try a configuration, and show where each method goes", cli.Check},
		{"status", "[flags]", "show how a running criproxy is doing", cli.ShowStatus},
		{"pods", "[flags]", "show the pods of all runtimes, and which runtime each is on", cli.Pods},
		{"events", "[-since TIME]", "show when runtimes were slow, gone or up, reloads, handovers and lost plugins", cli.Events},
		{"where", "ID", "show which runtime a pod or container is on", cli.Where},
		{"doctor", "[flags]", "examine this node, and say what would not work and how to fix it", cli.ExamineNode},
		{"hooks", "[-json]", "show the plugins of a running criproxy", cli.ShowHooks},
		{"instances", "[-json]", "list the criproxy processes on this machine", cli.Instances},
		{"support", "[-o FILE]", "collect status, configuration and calls in one file, for a bug report", cli.Support},
		{"completion", "SHELL", "print the script with which bash, zsh or fish completes command lines", completion},
		{"demo", "[-once]", "run a demonstration: two runtimes in memory, a client, and criproxy between them", cli.Demo},
		{"ui", "[flags]", "show calls, pods and status in a browser on this machine", cli.UI},
		{"tail", "[flags]", "show calls as they happen", cli.Tail},
		{"dump", "[-o FILE]", "save the latest calls, which a running criproxy keeps in memory", cli.Dump},
		{"tap", "-connect PATH -listen PATH", "show the calls between clients and one server of any gRPC API", cli.Tap},
		{"view", "[flags] FILE", "show the calls in a file", cli.View},
		{"convert", "FILE TO", "convert a file of calls to the format that the ending of TO names", cli.Convert},
		{"replay", "FILE -to PATH", "send recorded calls again, and show how the answers differ", cli.ReplayCalls},
		{"fixture", "FILE -listen PATH", "answer calls from a recording, without a runtime", cli.Fixture},
		{"wireshark-profile", "DIR", "write a profile with which Wireshark shows the names of fields", cli.WiresharkProfile},
		{"install", "-takeover PATH", "put criproxy at the path of containerd's or CRI-O's own socket", cli.Install},
		{"uninstall", "", "undo install", cli.Uninstall},
		{"version", "", "print the version", cli.Version},
	}
}

// killBound is how long any command may run after the signal to end. It is longer than the time after which serve logs
// what it waits for, so that serve can still write that line.
const killBound = daemon.ExitBound + 2*cli.LastRead

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	errOut := os.Stderr // serve replaces os.Stderr, for its log
	context.AfterFunc(ctx, func() { time.AfterFunc(killBound, func() { kill(errOut) }) })
	c, args := find(os.Args[1:])
	setLog(c.name, errOut)
	err := c.do(ctx, args, os.Stdout, errOut)
	stop()
	klog.Flush()
	os.Exit(cli.ExitCode(err, errOut))
}

// kill ends the process. It first writes why, unless that would block on standard error.
func kill(errOut io.Writer) {
	said := make(chan struct{})
	go func() {
		cli.PrintError(errOut, fmt.Errorf("still running %s after the signal to end; ending now", killBound))
		close(said)
	}()
	select {
	case <-said:
	case <-time.After(cli.LastRead):
	}
	os.Exit(1)
}

// setLog chooses the log of the process for a command: commands that report or show calls log errors at most. Only main
// calls it, because tests run commands in a process with proxies that log.
func setLog(command string, errOut io.Writer) {
	switch command {
	case "check", "demo":
		klog.SetLogger(logr.Discard()) // the output has all errors
	case "tap":
		klog.SetLogger(cli.ErrorsOnly(errOut))
	}
}

// do runs the command. If the command returns [cli.ErrHelp], do prints the help on all commands.
func (c command) do(ctx context.Context, args []string, out, errOut io.Writer) error {
	err := c.run(ctx, args, out, errOut)
	if errors.Is(err, cli.ErrHelp) {
		return help(out)
	}
	return err
}

// failing returns a command that fails with err.
func failing(err error) command {
	return command{run: func(context.Context, []string, io.Writer, io.Writer) error { return err }}
}

// find returns the command that args name, and the arguments of the command.
func find(args []string) (command, []string) {
	all := commands()
	name := all[0].name
	if len(args) == 1 && (args[0] == "-version" || args[0] == "--version") {
		args = []string{"version"}
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if name == "help" {
		return failing(cli.ErrHelp), nil
	}
	for _, c := range all {
		if c.name == name {
			return c, args
		}
	}
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	if meant := suggest.Nearest(name, names); meant != "" {
		return failing(cli.Usage(fmt.Errorf("there is no command %q%s", name, meant))), nil
	}
	return failing(cli.Usage(fmt.Errorf("there is no command %q: want one of %s", name, strings.Join(names, ", ")))), nil
}

func help(out io.Writer) error {
	printHelp(out)
	return flag.ErrHelp
}

// printHelp prints the help on all commands.
func printHelp(out io.Writer) {
	fmt.Fprint(out, `criproxy is one CRI socket in front of several container runtimes.

Usage:
`)
	for _, c := range commands() {
		fmt.Fprintf(out, "  criproxy %-16s %s\n", strings.TrimSpace(c.name+" "+c.usage), c.short)
	}
	fmt.Fprint(out, `
Flags of serve and check:
`)
	cli.PrintServeFlags(out)
	fmt.Fprint(out, `
For example, with containerd for all pods but those of RuntimeClass or annotation kata.io:

  criproxy -connect /run/containerd/containerd.sock,kata.io:/run/kata/containerd.sock -listen /run/criproxy.sock
  kubelet --container-runtime-endpoint=unix:///run/criproxy.sock ...
`)
}
