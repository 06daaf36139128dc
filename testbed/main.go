package testbed

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/criproxy/criproxy/internal/testing/watchdog"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// Main is for TestMain of a package whose tests need the testbed. It prints to standard error which tests this machine
// cannot run, what they do differently here, and why. It builds the named components (without names,
// [build.ForContainers]) before the tests begin, because the first build may take longer than their timeout:
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
//
// Packages take turns: go test starts several at once, and runtimes look slow on a machine that is busy with another
// package's containers. Packages with a kubelet, whose tests mostly wait, take turns among themselves. To do something
// before and after all tests, a package passes its own type, whose Run calls the Run of m.
//
// Before the tests Main removes what a run left that was killed, and names it. During the tests it prints every minute
// which of them are under way. At [Limit] it prints what all goroutines do, also those of each criproxy that the tests
// started, destroys their instances, and fails.
func Main(m interface{ Run() int }, names ...string) {
	flag.Parse() // for testing.Short
	host.Own()   // a run that is killed leaves its folders for the next one to remove
	if !testing.Short() {
		prepare(names)
		if len(Requirements()) > 0 {
			os.Exit(m.Run()) // the tests start nothing
		}
		if err := takeTurn(names); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		cleanAbandoned()
	}
	go watch(os.Stderr)
	os.Exit(m.Run())
}

// turn keeps the lock from the garbage collector, which would release it.
var turn func()

// takeTurn waits until the tests of fewer than two other packages run, or, for a package with a kubelet, of no other one
// with a kubelet. The turn ends with this process.
func takeTurn(names []string) error {
	turns := []string{"tests.lock", "tests2.lock"} // as many as keep two cores busy
	if slices.Contains(names, build.Kubelet) {
		turns = []string{"kubelet.lock"}
	}
	cache, err := build.CacheDir()
	if err == nil {
		err = os.MkdirAll(cache, 0o755)
	}
	if err == nil {
		for i := range turns {
			turns[i] = filepath.Join(cache, turns[i])
		}
		ctx, cancel := context.WithTimeout(context.Background(), watchdog.Longest) // no package takes longer
		defer cancel()
		turn, err = host.Lock(ctx, func() {
			fmt.Fprintln(os.Stderr, "testbed: waiting until the tests of another package are done")
		}, turns...)
	}
	if err != nil {
		return fmt.Errorf("testbed: waiting for the machine: %w", err)
	}
	return nil
}

// cleanAbandoned removes what a run left that was killed, and names it. One run at a time does so. What cannot be removed
// does not keep the tests from running.
func cleanAbandoned() {
	cache, err := build.CacheDir()
	if err == nil {
		var unlock func()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if unlock, err = host.Lock(ctx, func() {}, filepath.Join(cache, "clean.lock")); err == nil {
			defer unlock()
			var removed []string
			removed, err = host.CleanAbandoned()
			for _, what := range removed {
				fmt.Fprintln(os.Stderr, "testbed: removed", what)
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testbed: removing what a run left that was killed:", err)
	}
}

func prepare(names []string) {
	var can, cannot []string
	for _, name := range names {
		if len(requirementsOf([]string{name})) == 0 {
			can = append(can, name)
		} else {
			cannot = append(cannot, name)
		}
	}
	if reasons := requirementsOf(names); len(reasons) > 0 {
		what := "real runtimes"
		if len(Requirements()) == 0 {
			what = strings.Join(cannot, " or ")
		}
		fmt.Fprintf(os.Stderr, "testbed: left out: every test with %s, because\n", what)
		for _, err := range reasons {
			fmt.Fprintln(os.Stderr, "  ", err)
		}
	}
	if len(Requirements()) > 0 {
		return
	}
	for _, note := range host.Notes() {
		fmt.Fprintln(os.Stderr, "testbed: note:", note)
	}
	// Require returns the error again, and fails a test with it.
	build.Get(context.Background(), os.Stderr, can...)
}
