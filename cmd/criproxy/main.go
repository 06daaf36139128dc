// Command criproxy is one CRI socket in front of several container runtimes.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/docs"
	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/server"
)

// A command is one of criproxy's subcommands.
type command struct {
	name  string
	usage string // its arguments, for the manual page
	short string // what it does, in one line
	run   func(ctx context.Context, args []string, out, errOut io.Writer) error
}

// A group is commands with one purpose.
type group struct {
	purpose  string
	commands []command
}

// groups is the table of subcommands, in the order of the help. Help, manual page and completion are made from it.
func groups() []group {
	return []group{
		{"To try it without any setup", []command{
			{"demo", "[-once]", "run two runtimes in memory, a client, and criproxy between", cli.Demo},
		}},
		{"To set it up", []command{
			{standard, "[flags]", "stand between kubelet and the runtimes (the default)", cli.Serve},
			{"check", "[flags]", "try a configuration, and show where each method goes", cli.Check},
			{"doctor", "[flags]", "find what would not work on this node, and how to fix it", cli.ExamineNode},
			{"install", "-takeover PATH", "take over the socket of containerd or CRI-O", cli.Install},
			{"uninstall", "", "undo install", cli.Uninstall},
		}},
		{"To see how it is doing", []command{
			{"why", "[POD|FILE|LINE]", "say what is wrong with pods, runtimes or kubelet", cli.Why},
			{"status", "[flags]", "show how a running criproxy is doing", cli.ShowStatus},
			{"pods", "[flags]", "show the pods of all runtimes, and where each is", cli.Pods},
			{"events", "[flags]", "show when runtimes were slow, gone or up, and reloads", cli.Events},
			{"where", "ID", "show which runtime a pod or container is on", cli.Where},
			{"hooks", "[flags]", "show the plugins of a running criproxy", cli.ShowHooks},
			{"instances", "[flags]", "list the criproxy processes on this machine", cli.Instances},
			{"support", "[FILE]", "collect what a bug report needs in one file", cli.Support},
		}},
		{"To look at calls", []command{
			{"ui", "[POD]", "show calls, pods and status in a browser on this machine", cli.UI},
			{"tail", "[POD]", "show calls as they happen", cli.Tail},
			{"dump", "[FILE]", "save the latest calls, which criproxy keeps in memory", cli.Dump},
			{"view", "[flags] FILE", "show the calls in a file", cli.View},
			{"convert", "FILE TO", "convert a file of calls to another format", cli.Convert},
			{"tap", "-connect PATH -listen PATH", "show the calls to one server of any gRPC API", cli.Tap},
			{"wireshark-profile", "DIR", "make Wireshark show the names of fields", cli.WiresharkProfile},
		}},
		{"To repeat recorded calls", []command{
			{"replay", "FILE -to PATH", "send them again, and show how the answers differ", cli.ReplayCalls},
			{"fixture", "FILE -listen PATH", "answer them without a runtime", cli.Fixture},
		}},
		{"Other commands", []command{
			{"help", "[COMMAND]", "show what a command does, and its flags", help},
			{"dial-stdio", "[-admin PATH]", "reach the admin socket of this node from another machine", cli.DialStdio},
			{"completion", "SHELL", "print what a shell needs to complete command lines", completion},
			{"version", "[flags]", "print the version", cli.Version},
		}},
	}
}

// standard is the command of a command line that names none, as those of the original CRI Proxy do.
const standard = "serve"

// commands returns the commands of all groups.
func commands() (all []command) {
	for _, g := range groups() {
		all = append(all, g.commands...)
	}
	return all
}

// killBound is how long any command may run after the signal to end. It is longer than the time after which serve logs
// what it waits for, so that serve can still write that line.
const killBound = server.ExitBound + 2*cli.LastRead

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	errOut := os.Stderr // serve replaces os.Stderr, for its log
	context.AfterFunc(ctx, func() { time.AfterFunc(killBound, func() { kill(errOut) }) })
	c, args := find(asPlugin(os.Args))
	setLog(c.name, errOut)
	err := c.run(ctx, args, os.Stdout, errOut)
	stop()
	klog.Flush()
	os.Exit(cli.ExitCode(c.name, err, errOut))
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
	case "serve", "tap", "ui":
	default:
		log.SetOutput(io.Discard) // net/http remarks when a server speaks first, which may be a runtime
	}
	switch command {
	case "check", "demo":
		klog.SetLogger(logr.Discard()) // the output has all errors
	case "tap":
		klog.SetLogger(cli.ErrorsOnly(errOut))
	}
}

// kubectlPlugin is the name of the program as a plugin of kubectl.
const kubectlPlugin = "kubectl-criproxy"

// kubectlComplete is its name as the program that completes command lines of the plugin.
const kubectlComplete = "kubectl_complete-criproxy"

// asPlugin returns the arguments of a command line. As a plugin of kubectl, criproxy asks all nodes unless flags choose
// some, and flags may stand before the command, as those of kubectl do. It never serves.
func asPlugin(argv []string) []string {
	args := argv[1:]
	switch filepath.Base(argv[0]) {
	case kubectlComplete:
		return append([]string{"completion", "kubectl"}, args...)
	case kubectlPlugin:
	default:
		return args
	}
	if os.Getenv(cli.NodesVariable) == "" {
		_ = os.Setenv(cli.NodesVariable, "all") // fails for no name of a variable that is valid
	}
	var before []string
	for len(args) > 1 && strings.HasPrefix(args[0], "-") && !wantsHelp(args[0]) {
		n := 1
		if !strings.Contains(args[0], "=") {
			n = 2 // all of them take a value
		}
		n = min(n, len(args))
		before, args = append(before, args[:n]...), args[n:]
	}
	switch {
	case len(args) == 1 && strings.HasSuffix(args[0], "-version"):
		return args
	case len(args) == 0 || args[0] == standard || strings.HasPrefix(args[0], "-"):
		return []string{"help"}
	}
	for i := range before {
		if name, value, ok := strings.Cut(before[i], "="); name == "--namespace" || name == "-namespace" {
			before[i] = "-n"
			if ok {
				before[i] += "=" + value
			}
		}
	}
	return slices.Concat(args[:1], before, args[1:])
}

// find returns the command that args name, and the arguments of the command. If there is no such command, it returns
// one without a name, which fails.
func find(args []string) (command, []string) {
	name := standard
	switch {
	case len(args) == 1 && (args[0] == "-version" || args[0] == "--version"):
		name, args = "version", nil
	case len(args) == 1 && wantsHelp(args[0]):
		name, args = "help", nil
	case len(args) > 0 && !strings.HasPrefix(args[0], "-"):
		name, args = args[0], args[1:]
	}
	var names []string
	for _, c := range commands() {
		if c.name == name {
			return c, args
		}
		names = append(names, c.name)
	}
	unknown := cli.Usage(fmt.Errorf("there is no command %q%s", name, suggest.Nearest(name, names)))
	return command{run: func(context.Context, []string, io.Writer, io.Writer) error { return unknown }}, args
}

// wantsHelp reports whether an argument is the flag that asks for help.
func wantsHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// help is the subcommand that shows what the commands do. criproxy help COMMAND is the same as criproxy COMMAND -h.
// criproxy help runbook#ANCHOR prints a section of the runbook.
func help(ctx context.Context, args []string, out, errOut io.Writer) error {
	switch {
	case len(args) == 0 || wantsHelp(args[0]):
		printHelp(out)
		return nil
	case len(args) > 1 || strings.HasPrefix(args[0], "-"):
		return cli.Usage(fmt.Errorf("help takes the name of one command, got %q", strings.Join(args, " ")))
	}
	if document, anchor, _ := strings.Cut(args[0], "#"); document == "runbook" {
		section, anchors := docs.Runbook(anchor)
		if section == "" {
			return cli.Usage(fmt.Errorf("the runbook has no section %q%s", anchor, suggest.Nearest(anchor, anchors)))
		}
		_, err := io.WriteString(out, section)
		return err
	}
	c, _ := find(args)
	return c.run(ctx, []string{"-h"}, out, errOut)
}

// printHelp prints what each command does.
func printHelp(out io.Writer) {
	fmt.Fprint(out, "criproxy is one CRI socket in front of several container runtimes.\n\n")
	for _, g := range groups() {
		fmt.Fprintf(out, "%s:\n", g.purpose)
		for _, c := range g.commands {
			fmt.Fprintf(out, "  %-18s %s\n", c.name, c.short)
		}
	}
	fmt.Fprint(out, "\nFlags follow the command; criproxy help COMMAND shows them.\nIn trouble: criproxy help runbook.\n")
}
