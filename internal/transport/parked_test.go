package transport_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// parked waits until at least n goroutines are in one of some functions of package transport or
// of grpc-go, such as "(*conn).await".
func parked(t testing.TB, n int, functions ...string) {
	t.Helper()
	stacks := make([]byte, 4<<20)
	require.Eventually(t, func() bool {
		there := 0
		for one := range bytes.SplitSeq(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
			for _, f := range functions {
				if bytes.Contains(one, []byte("transport."+f+"(")) {
					there++
					break
				}
			}
		}
		return there >= n
	}, patience, time.Millisecond, "waiting for %d goroutines in %v", n, functions)
}
