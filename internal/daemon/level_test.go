package daemon

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testkit"
)

// level is what a process has open, and holds.
type level struct {
	goroutines, files int
	memory            uint64 // live, in bytes
}

// levelNow collects the garbage first.
func levelNow() level {
	runtime.GC()
	runtime.GC() // what pools held is free after the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return level{runtime.NumGoroutine(), len(files), m.HeapAlloc}
}

// What there may be more of than before, without it being forgotten somewhere: connections
// that were idle are made of more goroutines for a moment, and the runtimes in memory,
// which are in this process, have more pods and containers than they had.
const (
	moreGoroutines = 10
	moreFiles      = 5
	moreMemory     = 8 << 20
)

// leaked returns an error if there is clearly more after than before.
func leaked(before, after level) error {
	if after.goroutines > before.goroutines+moreGoroutines || after.files > before.files+moreFiles || after.memory > before.memory+moreMemory {
		return fmt.Errorf("before %s, after %s", before, after)
	}
	return nil
}

func (l level) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %.1f MiB", l.goroutines, l.files, float64(l.memory)/(1<<20))
}

// settled returns the level once nothing is left over, and fails t if that does not come.
func settled(t testing.TB, before level, why func() string) level {
	t.Helper()
	now := levelNow()
	for deadline := time.Now().Add(testkit.Patience); leaked(before, now) != nil; now = levelNow() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			require.NoError(t, leaked(before, now), "after:\n%s\n%s", why(), stacks)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return now
}
