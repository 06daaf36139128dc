//go:build linux

// Command criproxy-on-node installs criproxy on the node on which its container runs: see docs/operations.md. It runs
// on-node.sh with the node's shell in the node's namespaces, for which it needs hostPID and privileges. Its own image
// needs neither a shell nor tools. With arguments it runs the node's criproxy with them.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
)

//go:embed on-node.sh
var script string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:])
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() > 0 {
		os.Exit(ended.ExitCode()) // the script has said why
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "criproxy-on-node:", err)
		os.Exit(1)
	}
}

// run runs the script in the namespaces of the process $NODE_PID, 1 by default. The script sees the image, which is the
// folder $FROM, as an open file: from the node's namespaces no path leads there.
func run(ctx context.Context, args []string) error {
	image, err := os.Open(cmp.Or(os.Getenv("FROM"), "/"))
	if err != nil {
		return err
	}
	defer image.Close()
	runtime.LockOSThread() // and never unlock it: the thread leaves the container
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leaving the container: %w; the pod must be privileged", err)
	}
	node := cmp.Or(os.Getenv("NODE_PID"), "1")
	var spaces []*os.File
	for _, name := range []string{"pid", "net", "uts", "ipc", "mnt"} {
		f, err := os.Open("/proc/" + node + "/ns/" + name)
		if err != nil {
			return fmt.Errorf("finding the node: %w; the pod must be privileged, with hostPID", err)
		}
		defer f.Close()
		spaces = append(spaces, f)
	}
	for _, f := range spaces {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("entering the node's namespace %s: %w; the pod must be privileged, with hostPID", f.Name(), err)
		}
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "criproxy-on-node"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{image}
	cmd.Env = append(os.Environ(), "FROM=/proc/self/fd/3", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return cmd.Run()
}
