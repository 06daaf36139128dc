package capture

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/codec"
)

// notable returns the events on the shelf of notable calls.
func notable(rec *Recorder) (all []Event) {
	rec.archive.drain()
	rec.archive.each(func(b *block) {
		if b.kind == partNotable {
			u := newUnpacker(b.parts)
			for ev := (Event{}); u.next(&ev); {
				all = append(all, ev)
			}
		}
	})
	return all
}

// begins returns the client's leg of a call, and of which backend legs begin.
func begins(t *testing.T, rec *Recorder, message int) (leg *Leg, back func() *Leg) {
	ctx, leg := rec.Begin(t.Context(), LegInfo{Method: "/x.Y/Z", Client: true})
	leg.Request(codec.NewFrame(make([]byte, message)))
	return leg, func() *Leg {
		_, leg := rec.Begin(ctx, LegInfo{Method: "/x.Y/Z", Backend: "beta.io"})
		return leg
	}
}

var errFailed = errors.New("failed")

// The archive had missed the ends of so many calls that no later one was notable until a restart.
func TestCallsAreNotableAfterTheEndsOfManyWereMissed(t *testing.T) {
	for name, message := range map[string]int{"many": 1, "long": maxLiveBytes} {
		t.Run(name, func(t *testing.T) {
			rec := NewRecorder(Config{Bytes: 4 << 20})
			for range maxLive + 1 {
				begins(t, rec, message)
				rec.archive.drain()
			}
			assert.LessOrEqual(t, len(rec.archive.live), maxLive)
			assert.LessOrEqual(t, rec.archive.held, maxLiveTotal+2*maxLiveBytes)
			rec.skip(maxLive) // their ends
			leg, _ := begins(t, rec, 1)
			leg.End(errFailed, nil)
			assert.Len(t, notable(rec), 3)
			assert.Zero(t, rec.archive.held)
		})
	}
}

// A leg that begins after the end of its call, as criproxy repeats a request to a runtime that was away, stayed for ever.
func TestALateLegIsNotUnderWayForEver(t *testing.T) {
	rec := NewRecorder(Config{Bytes: 4 << 20})
	leg, back := begins(t, rec, 1)
	leg.End(nil, nil)
	back().End(nil, nil)
	rec.archive.drain()
	assert.Empty(t, rec.archive.live)
}

// A stream of many events that ended with an error pushed failures out, and had taken memory for each of its events.
func TestALongStreamPushesNoFailureOut(t *testing.T) {
	rec := NewRecorder(Config{Bytes: 4 << 20})
	failure, _ := begins(t, rec, 1)
	failure.End(errFailed, nil)
	front, back := begins(t, rec, 1)
	leg := back()
	for i := range 20_000 {
		message := codec.NewFrame(fmt.Appendf(nil, "%x", sha256.Sum256([]byte{byte(i), byte(i >> 8)})))
		leg.Reply(message)
		front.Reply(message)
		if i%1000 == 0 {
			rec.archive.drain()
		}
	}
	leg.End(errFailed, nil)
	rec.archive.drain()
	assert.LessOrEqual(t, rec.archive.held, maxLiveBytes+maxLiveMore+1000)
	front.End(errFailed, nil)
	all := notable(rec)
	assert.Equal(t, uint64(1), all[0].Call, "the failure before is there")
	assert.Equal(t, rec.Recorded(), all[len(all)-1].Seq, "and the end of the stream")
}
