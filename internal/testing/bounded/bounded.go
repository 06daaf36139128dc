// Package bounded gives tests processes that end. The context of a test has no deadline, so a command that waits for
// something that does not come would take the tests' whole time, and say nothing.
package bounded

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

// Patience is how long a process may run. It measures nothing: a build may be from nothing, the machine may be busy.
const Patience = 5 * time.Minute

// Command returns a command that is killed when the test has ended, after the cleanups that the test adds from now on, and
// at the latest after Patience.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Minute // a grandchild, such as the successor of a criproxy, may hold the output open
	return cmd
}
