// Package bounded gives tests processes and streams that end. The context of a test has no deadline, so what waits for
// something that does not come would take the tests' whole time, and say nothing.
package bounded

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/criproxy/criproxy/internal/testing/watchdog"
)

// Patience is how long a process or a stream may last. It measures nothing: the machine may be busy.
const Patience = 5 * time.Minute

// running ends, by hung, at the limit of the package.
var running, hung = context.WithCancel(context.Background())

var errTestEnded = errors.New("the test has ended")

// Run runs the tests of a package with a watchdog, which each minute prints which tests with commands are under way:
//
//	func TestMain(m *testing.M) { os.Exit(bounded.Run(m)) }
//
// At [watchdog.Limit] it prints what all goroutines do, lets each command say that as well, and fails.
func Run(m interface{ Run() int }) int {
	flag.Parse()
	go watchdog.Watch(os.Stderr, watchdog.Limit, func() {
		hung()
		time.Sleep(20 * time.Second) // a test whose command has ended fails, and prints what it said
	})
	return m.Run()
}

// Command returns a command that is killed when the test has ended, after the cleanups that the test adds from now on. At
// the latest after Patience it gets SIGQUIT, on which a Go program says what its goroutines do and ends; what goes on is
// killed a minute later.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	return command(t, Patience, name, args...)
}

// Build returns a go command that compiles, which may take as long as all tests of the package: a build from nothing takes long
// on a busy machine, and says nothing about the test. Otherwise it is as Command.
func Build(t testing.TB, args ...string) *exec.Cmd {
	return command(t, watchdog.Longest, "go", args...)
}

func command(t testing.TB, patience time.Duration, name string, args ...string) *exec.Cmd {
	watchdog.UnderWay(t)
	test, end := context.WithCancelCause(running)
	ctx, cancel := context.WithTimeout(test, patience)
	t.Cleanup(func() {
		end(errTestEnded)
		cancel()
	})
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Minute // a grandchild, such as the successor of a criproxy, may hold the output open
	cmd.Cancel = func() error {
		if context.Cause(ctx) == errTestEnded {
			return cmd.Process.Kill()
		}
		err := cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Process.Signal(syscall.SIGCONT) // it may be frozen
		return err
	}
	return cmd
}

// Context returns a context for streams: it ends with the test, and at the latest after Patience.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}
