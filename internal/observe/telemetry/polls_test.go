package telemetry

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// After an hour the recorder used to have only calls that criproxy makes itself.
func TestOurOwnCallsDoNotPushClientsOut(t *testing.T) {
	r := &Recording{rec: capture.NewRecorder(capture.Config{Bytes: 64 << 10})}
	call := func(client bool, method string, err error) {
		ctx, leg := r.Tracer(nil).Begin(context.Background(), director.LegInfo{Method: method, Client: client})
		if client {
			_, inner := r.Tracer(nil).Begin(ctx, director.LegInfo{Method: method})
			inner.End(nil, nil)
		}
		leg.Request(codec.NewFrame(make([]byte, 100)))
		leg.Reply(codec.NewFrame(make([]byte, 1000)))
		leg.End(err, nil)
	}
	call(true, "/a.B/StartContainer", nil)
	for range 10_000 {
		call(false, "/a.B/List", nil)
	}
	call(false, "/a.B/List", errors.New("no"))
	call(true, "/a.B/StopContainer", nil)
	got := map[string]int{}
	var ev capture.Event
	for f := r.rec.Follow(true); f.TryNext(&ev); {
		if ev.Kind == capture.Start {
			got[ev.Method]++
		}
	}
	assert.Equal(t, map[string]int{"/a.B/StartContainer": 2, "/a.B/List": 2, "/a.B/StopContainer": 2}, got, "both legs, the first poll, and that which failed")
}
