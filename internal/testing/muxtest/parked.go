package muxtest

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Parked waits until at least n goroutines are blocked in one of the given functions. Their names are
// those of stack traces: "transport.(*conn).await".
func Parked(t testing.TB, n int, functions ...string) {
	t.Helper()
	stacks := make([]byte, 4<<20)
	require.Eventually(t, func() bool {
		blocked := 0
		for one := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			state, _, _ := strings.Cut(one, "\n")
			if strings.Contains(state, "[running") || strings.Contains(state, "[runnable") {
				continue
			}
			for _, f := range functions {
				if strings.Contains(one, f+"(") {
					blocked++
					break
				}
			}
		}
		return blocked >= n
	}, 20*time.Second, time.Millisecond, "%d goroutines are not blocked in %v", n, functions)
}
