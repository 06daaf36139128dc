package testbed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/testing/watchdog"
	"github.com/criproxy/criproxy/testbed/host"
)

// Limit is how long the tests of a package may take, without their turn: then [Main] prints what all goroutines do, and
// fails. A package whose tests need longer sets Limit before it calls Main. go test -timeout bounds Limit: one over
// 15 minutes asks for a long run, and replaces it.
var Limit = watchdog.Limit

// watch ends this process at the limit. It prints what each criproxy does, and destroys all instances.
func watch(w io.Writer) {
	watchdog.Watch(w, Limit, func() {
		for _, pid := range host.Criproxies() {
			dump(w, pid)
		}
		var all sync.WaitGroup
		for _, dir := range host.Owned() {
			all.Go(func() {
				if err := host.Clean(dir); err != nil {
					fmt.Fprintln(w, err)
					return
				}
				fmt.Fprintln(w, "testbed: destroyed the instance in", dir)
			})
		}
		all.Wait()
	})
}

// dump ends a criproxy by SIGQUIT, upon which it writes what its goroutines do, and prints the end of its log. Where it
// writes to a pipe, the test has that.
func dump(w io.Writer, pid int) {
	log := host.OutputOf(pid)
	started := host.StartTime(pid)
	unix.Kill(pid, unix.SIGQUIT)
	unix.Kill(pid, unix.SIGCONT) // it may be frozen
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := host.Poll(ctx, fmt.Sprintf("criproxy %d to write its goroutines", pid), func() bool { return host.StartTime(pid) != started })
	if err != nil {
		fmt.Fprintln(w, err)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		fmt.Fprintf(w, "testbed: criproxy %d has no log to print here: %v\n", pid, err)
		return
	}
	at := max(0, bytes.LastIndex(data, []byte("SIGQUIT: quit")))
	fmt.Fprintf(w, "testbed: the end of the log of criproxy %d, %s:\n%s\n%s\n", pid, log, host.LastLines(string(data[:at]), 60), data[at:])
}
