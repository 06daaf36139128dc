//go:build !race

package telemetry

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// The call itself must not wait for an allocation because it is recorded. The archive takes events in between, as it does
// beside the calls: what it allocates is not counted. The race detector allocates as well.
func TestRecordingAllocatesNothingForACall(t *testing.T) {
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	r, err := NewRecording(&config.Config{FlightRecorder: 8 << 20}, d, nil)
	require.NoError(t, err)
	header := metadata.Pairs("content-type", "application/grpc")
	sent := metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.80.0")
	call := func(tracer director.Tracer, request, reply *codec.Frame) {
		const method = runtimeapi.RuntimeService_ListContainers_FullMethodName
		ctx, front := tracer.Begin(context.Background(), director.LegInfo{Method: method, Client: true, Metadata: sent})
		front.Request(request)
		_, back := tracer.Begin(ctx, director.LegInfo{Method: method, Primary: true})
		back.Request(request)
		for _, leg := range []director.Leg{back, front} {
			leg.Header(header)
			leg.Reply(reply)
			leg.End(nil, nil)
		}
	}
	allocations := func(tracer director.Tracer, reply []byte) float64 {
		const rounds, each = 40, 100
		request, answer := codec.NewFrame([]byte{10, 0}), codec.NewFrame(reply)
		least := ^uint64(0) // other goroutines of the process may allocate, too
		for i := range rounds {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range each {
				call(tracer, request, answer)
			}
			runtime.ReadMemStats(&after)
			if i >= rounds/2 { // the memory for events is full
				least = min(least, after.Mallocs-before.Mallocs)
			}
			_, _ = r.rec.Snapshot(&capture.FileHeader{}) // the archive has all of them now
		}
		return float64(least) / each
	}
	others := Tracers{[]director.Tracer{NewMetrics()}, &LastErrors{}}
	all := Tracers{append(others.Each, r.Tracer(nil)), &LastErrors{}}
	for name, size := range map[string]int{"a status": 1 << 10, "a list of 20": 18 << 10, "a list of 400": 360 << 10} {
		assert.InDelta(t, allocations(others, make([]byte, size)), allocations(all, make([]byte, size)), 0.02, name)
	}
}
