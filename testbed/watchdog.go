package testbed

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/testbed/host"
)

// Limit is how long the tests of a package may take, without their turn: then [Main] prints what all goroutines do, and
// fails. A package whose tests need longer sets Limit before it calls Main. go test -timeout bounds Limit: one over
// 15 minutes asks for a long run, and replaces it.
var Limit = 10 * time.Minute

// longestTimeout is the -timeout that the Makefile gives to packages of the gate.
const longestTimeout = 15 * time.Minute

// limitOf returns the limit for a run with a -timeout; 0 means none. The limit comes before the timeout, at which the
// testing package would end the process and leave its instances.
func limitOf(limit, timeout time.Duration) time.Duration {
	most := timeout - min(time.Minute, timeout/3) // to write what hangs, and to destroy the instances
	if timeout > longestTimeout || timeout == 0 {
		return most
	}
	return min(limit, most)
}

// tests holds when each test under way began. The testing package does not say which those are, so a test is known from
// its first call of Require or of a New function here on.
var tests struct {
	sync.Mutex
	began map[string]time.Time
}

// underWay notes that a test has begun, until it ends.
func underWay(t testing.TB) {
	tests.Lock()
	defer tests.Unlock()
	if _, known := tests.began[t.Name()]; known {
		return
	}
	if tests.began == nil {
		tests.began = map[string]time.Time{}
	}
	tests.began[t.Name()] = time.Now()
	t.Cleanup(func() {
		tests.Lock()
		defer tests.Unlock()
		delete(tests.began, t.Name())
	})
}

// report prints the tests under way, the oldest first.
func report(w io.Writer, since time.Time) {
	tests.Lock()
	began := maps.Clone(tests.began)
	tests.Unlock()
	fmt.Fprintf(w, "testbed: after %s these tests with runtimes or criproxy are under way:\n", time.Since(since).Round(time.Second))
	for _, name := range slices.SortedFunc(maps.Keys(began), func(a, b string) int { return began[a].Compare(began[b]) }) {
		fmt.Fprintf(w, "   %s for %s\n", name, time.Since(began[name]).Round(time.Second))
	}
}

// expireNow lets a test reach the limit.
var expireNow = make(chan struct{})

// watch reports on w every minute, and ends the process at the limit.
func watch(w io.Writer) {
	limit := limitOf(Limit, flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration))
	began := time.Now()
	var expired <-chan time.Time // never, without a limit
	if limit > 0 {
		expired = time.After(limit)
	}
	minute := time.NewTicker(time.Minute)
	for {
		select {
		case <-minute.C:
			report(w, began)
			continue
		case <-expired:
		case <-expireNow:
		}
		break
	}
	fmt.Fprintf(w, "testbed: the tests of this package have reached their limit of %s\n", limit)
	report(w, began)
	pprof.Lookup("goroutine").WriteTo(w, 2)
	for _, pid := range host.Criproxies() {
		dump(w, pid)
	}
	var all sync.WaitGroup
	for _, dir := range host.Owned() {
		all.Go(func() {
			err := host.Clean(dir)
			if err != nil {
				fmt.Fprintln(w, err)
				return
			}
			fmt.Fprintln(w, "testbed: destroyed the instance in", dir)
		})
	}
	all.Wait()
	fmt.Fprintln(w, "FAIL: testbed: the limit: see the goroutines above")
	os.Exit(1)
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
