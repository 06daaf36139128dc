package server

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/invariant"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// levelNow collects the garbage first.
func levelNow() invariant.Level {
	runtime.GC()
	runtime.GC() // the second collection frees what pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return invariant.Level{Goroutines: runtime.NumGoroutine(), Files: len(files), Live: int64(m.HeapAlloc)}
}

// more is how much the level may rise without a leak: idle connections get more goroutines for a
// moment, and the runtimes in memory, which run in this process, get more pods and
// containers.
var more = invariant.Level{Goroutines: 10, Files: 5, Live: 8 << 20}

// settled returns the level when it has fallen far enough, and fails t if it never does.
func settled(t testing.TB, before invariant.Level, why func() string) invariant.Level {
	t.Helper()
	now := levelNow()
	for deadline := time.Now().Add(testkit.Patience); before.Leaked(now, more) != nil; now = levelNow() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			require.NoError(t, before.Leaked(now, more), "after:\n%s\n%s", why(), stacks)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return now
}
