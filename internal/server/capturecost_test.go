package server

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// cost makes small calls at full rate. It returns the processor time of one call, for client, proxy,
// runtime and capture together. Other load on the machine does not change it.
func cost(t testing.TB, n *node, calls int) float64 {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(calls))
	var wg sync.WaitGroup
	began := processorTime(t)
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
	time.Sleep(3 * capture.Linger) // until the last events are written
	return (processorTime(t) - began).Seconds() / float64(calls)
}

// processorTime is what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var used unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// compare returns the rate of calls with, as a part of the rate of calls without: the median of
// rounds that take turns.
func compare(t testing.TB, without, with *node, rounds, calls int) float64 {
	t.Helper()
	cost(t, without, calls)
	cost(t, with, calls)
	var ratios []float64
	for i := range rounds {
		var a, b float64
		if i%2 == 0 {
			a, b = cost(t, without, calls), cost(t, with, calls)
		} else {
			b, a = cost(t, with, calls), cost(t, without, calls)
		}
		ratios = append(ratios, a/b)
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// The test measures how much recording, and in addition writing to a file, reduces the rate of
// calls.
func BenchmarkCapture(b *testing.B) {
	for _, one := range []struct{ name, file string }{{"recorder", ""}, {"jsonl", "a.jsonl"}, {"pcapng", "a.pcapng"}, {"binlog", "a.binlog"}} {
		b.Run(one.name, func(b *testing.B) {
			without := newNode(b, func(c *config.Config) {
				if one.file == "" {
					c.FlightRecorder = -1
				}
			})
			with := newNode(b, func(c *config.Config) {
				if one.file != "" {
					c.Capture.Path = filepath.Join(b.TempDir(), one.file)
				}
			})
			b.ResetTimer()
			for range b.N {
				b.ReportMetric(compare(b, without, with, 9, 2000)*100, "%ofrate")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkCapture measures the cost.
func TestACaptureAtFullRateHasEveryCall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.jsonl")
	n := newNode(t, func(c *config.Config) { c.Capture.Path = path })
	const made = 400
	cost(t, n, made)
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
