package server

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// make bench measures the cost.
func TestACaptureAtFullRateHasEveryCall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.jsonl")
	n := newNode(t, func(c *config.Config) { c.Capture.Path = path })
	const made = 400
	var left atomic.Int64
	left.Store(made)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := n.Version(context.Background(), &runtimeapi.VersionRequest{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	n.stop()
	r, err := capture.Open(path)
	require.NoError(t, err)
	defer r.Close()
	calls := 0
	for {
		var ev capture.Event
		if r.Next(&ev) != nil {
			break
		}
		require.NotEqual(t, capture.Missed, ev.Kind, "all of it was written")
		if ev.Kind == capture.Start && ev.Leg == 0 {
			calls++
		}
	}
	assert.GreaterOrEqual(t, calls, made)
}
