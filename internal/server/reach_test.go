package server

import (
	"cmp"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/testing/recorded"
)

// BenchmarkReach measures how far back the flight recorder reaches, and what that costs, on the calls of a real kubelet with
// 100 pods on two containerds: three minutes of them, over and over, or all of the file CRIPROXY_RECORDING, which
// go run ./bench record makes in the folder testbed.
func BenchmarkReach(b *testing.B) {
	_, all := recorded.Read(b, cmp.Or(os.Getenv("CRIPROXY_RECORDING"), "testdata/node100.blocks"))
	first, span := all[0].Time, recorded.Span(all)
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(b, err)
	recording, err := telemetry.NewRecording(&config.Config{FlightRecorder: -1}, d, nil)
	require.NoError(b, err)
	for _, one := range []struct {
		name  string
		bytes int
		cfg   capture.Config
	}{
		{"8MiB", 8 << 20, capture.Config{Schema: criadapter.Schema(), Notable: recording.Notable}},
		{"16MiB", 16 << 20, capture.Config{Schema: criadapter.Schema(), Notable: recording.Notable}},
	} {
		b.Run(one.name, func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				one.cfg.Bytes = one.bytes
				rec := capture.NewRecorder(one.cfg)
				began := processorTime(b)
				n, calls := 0, 0
				var now time.Time
				for filled := false; !filled; n++ {
					filled = n > 0 && rec.Reach().Notable.After(first.Add(2*span)) || n == 100
					recorded.Round(all, n, func(ev *capture.Event) {
						now = ev.Time
						if rec.Add(ev); ev.Kind == capture.Start && ev.Leg == 0 {
							calls++
						}
					})
				}
				took := processorTime(b) - began
				reach := rec.Reach()
				b.ReportMetric(now.Sub(reach.All).Minutes(), "min")
				b.ReportMetric(now.Sub(reach.Notable).Minutes(), "min-notable") // at least: there may be few
				b.ReportMetric(float64(took.Microseconds())/float64(calls), "µs/call")
				asked := time.Now()
				var ev capture.Event
				require.True(b, rec.FollowWanted(capture.Want{Since: now.Add(-time.Hour)}).TryNext(&ev))
				b.ReportMetric(float64(time.Since(asked).Microseconds())/1000, "ms-to-first")
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB-heap")
				runtime.KeepAlive(rec)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// processorTime is what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var used unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
