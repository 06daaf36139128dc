// Package watchdog says which tests of a package are under way, and ends the package at a limit.
package watchdog

import (
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
)

// Limit is how long the tests of a package may take.
const Limit = 10 * time.Minute

// Longest is the -timeout that the Makefile gives to packages of the gate.
const Longest = 15 * time.Minute

// limitOf returns the limit for a run with a -timeout; 0 means none. The limit comes before the timeout, at which the
// testing package would end the process and leave what it has started. A timeout over [Longest] asks for a long run, and
// replaces the limit.
func limitOf(limit, timeout time.Duration) time.Duration {
	most := timeout - min(time.Minute, timeout/3) // to write what hangs, and to clean up
	if timeout > Longest || timeout == 0 {
		return most
	}
	return min(limit, most)
}

// tests holds when each test under way began. The testing package does not say which those are, so a test is known from
// its first call of UnderWay on.
var tests struct {
	sync.Mutex
	began map[string]time.Time
}

// UnderWay notes that a test has begun, until it ends.
func UnderWay(t testing.TB) {
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
	fmt.Fprintf(w, "watchdog: after %s these tests with other programs are under way:\n", time.Since(since).Round(time.Second))
	for _, name := range slices.SortedFunc(maps.Keys(began), func(a, b string) int { return began[a].Compare(began[b]) }) {
		fmt.Fprintf(w, "   %s for %s\n", name, time.Since(began[name]).Round(time.Second))
	}
}

// expireNow lets a test reach the limit.
var expireNow = make(chan struct{})

// Expire makes this run reach its limit. It is for tests of what happens then.
func Expire() { expireNow <- struct{}{} }

// Watch reports on w every minute. At the limit it prints what all goroutines do, calls cleanUp, and ends the process with
// a failure. Flags must have been parsed.
func Watch(w io.Writer, limit time.Duration, cleanUp func()) {
	limit = limitOf(limit, flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration))
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
	fmt.Fprintf(w, "watchdog: the tests of this package have reached their limit of %s\n", limit)
	report(w, began)
	pprof.Lookup("goroutine").WriteTo(w, 2)
	cleanUp()
	fmt.Fprintln(w, "FAIL: watchdog: the limit: see the goroutines above")
	os.Exit(1)
}
