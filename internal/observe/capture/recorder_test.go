package capture_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// record records a call with a request and a reply.
func record(rec *capture.Recorder, request, reply *codec.Frame) {
	_, leg := rec.Begin(context.Background(), capture.LegInfo{Method: muxtest.Method("Get"), Client: true})
	leg.Request(request)
	leg.Reply(reply)
	leg.End(nil, nil)
}

const perCall = 4 // events

func TestRecorderKeepsTheLatestWithinItsBound(t *testing.T) {
	const bytes = 64 << 10
	rec := capture.NewRecorder(capture.Config{Bytes: 2 * bytes})
	payload := codec.NewFrame([]byte(strings.Repeat("x", 100)))
	const n = 5000
	for range n {
		record(rec, payload, payload)
	}
	all := recorded(t, rec)
	kept := 0
	for i, ev := range all {
		kept += len(ev.Payload)
		require.Equal(t, all[0].Seq+uint64(i), ev.Seq, "nothing is missing between")
	}
	assert.Equal(t, uint64(n*perCall), all[len(all)-1].Seq)
	assert.Less(t, kept, bytes)
	assert.Greater(t, kept, bytes/8, "memory is used")
}

func TestASlowReaderLearnsHowManyEventsItMissed(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{Bytes: 64 << 10})
	f := rec.Follow(true)
	payload := codec.NewFrame([]byte(strings.Repeat("x", 100)))
	const n = 5000
	for range n { // recording goes on although the follower does not read
		record(rec, payload, payload)
	}
	rec.Close()
	read, missed := uint64(0), uint64(0)
	for _, ev := range drain(t, f) {
		if ev.Kind == capture.Missed {
			missed += ev.Missed
		} else {
			read++
		}
	}
	assert.Positive(t, missed)
	assert.Positive(t, read)
	assert.Equal(t, uint64(n*perCall), read+missed)
	assert.Equal(t, uint64(n*perCall), rec.Recorded())
}

func TestManyCallsAndFollowersAtOnce(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{Bytes: 256 << 10})
	const writers, each = 8, 500
	var followers, calls sync.WaitGroup
	for i := range 3 {
		f := rec.Follow(i%2 == 0)
		followers.Go(func() {
			var seen, last uint64
			for {
				var ev capture.Event
				if err := f.Next(context.Background(), &ev); errors.Is(err, io.EOF) {
					break
				}
				if ev.Kind == capture.Missed {
					seen += ev.Missed
					continue
				}
				seen++
				assert.Greater(t, ev.Seq, last)
				last = ev.Seq
				if ev.Kind == capture.Request { // unchanged
					n, err := strconv.Atoi(string(ev.Payload[:4]))
					assert.NoError(t, err)
					assert.Equal(t, fmt.Sprintf("%04d", n)+strings.Repeat(string(rune('a'+n%26)), n*7), string(ev.Payload))
				}
			}
			assert.Equal(t, uint64(writers*each*perCall), seen)
		})
	}
	for range writers {
		calls.Go(func() {
			for i := range each {
				record(rec, codec.NewFrame([]byte(fmt.Sprintf("%04d", i)+strings.Repeat(string(rune('a'+i%26)), i*7))), &codec.Frame{})
			}
		})
	}
	calls.Wait()
	rec.Close()
	followers.Wait()
}

func TestATooLongMessageIsTruncated(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{Bytes: 96 << 10})
	record(rec, codec.NewFrame(make([]byte, 1<<20)), codec.NewFrame([]byte("abc")))
	all := recorded(t, rec)
	require.Len(t, all, perCall)
	assert.True(t, all[1].Truncated)
	assert.Equal(t, 1<<20, all[1].Size)
	assert.Len(t, all[1].Payload, 16<<10)
	assert.False(t, all[2].Truncated)
}

func TestTooLongMessageHoldsOnlyItsFirstPieces(t *testing.T) {
	pool := &counting{}
	const pieces, each = 64, 16 << 10
	var all []*codec.Frame
	for i := range pieces {
		b := bytes.Repeat([]byte{byte(i)}, each)
		all = append(all, codec.FrameOfBuffers(mem.BufferSlice{mem.NewBuffer(&b, pool)}))
	}
	message := codec.Concat(all)
	rec := capture.NewRecorder(capture.Config{Bytes: 960 << 10})
	record(rec, codec.NewFrame(nil), message)
	message.Free()
	assert.Equal(t, pieces-10, pool.back, "160 KiB are in ten")
	reply := recorded(t, rec)[2]
	assert.True(t, reply.Truncated)
	assert.Equal(t, pieces*each, reply.Size)
	assert.Len(t, reply.Payload, 160<<10)
	assert.Equal(t, byte(9), reply.Payload[160<<10-1])

	// A message in one piece would be held whole, so its recorded part is copied.
	rec = capture.NewRecorder(capture.Config{Bytes: 960 << 10})
	whole := make([]byte, pieces*each)
	message = codec.FrameOfBuffers(mem.BufferSlice{mem.NewBuffer(&whole, pool)})
	record(rec, codec.NewFrame(nil), message)
	message.Free()
	assert.Equal(t, pieces-10+1, pool.back)
	assert.Len(t, recorded(t, rec)[2].Payload, 160<<10)
}

func TestLargeMessagesAreForgottenFirst(t *testing.T) {
	const bytes, length, n = 1 << 20, 40 << 10, 1000
	pool := &counting{}
	rec := capture.NewRecorder(capture.Config{Bytes: bytes * 16 / 3})
	late := rec.Follow(true)
	for i := range n {
		list := make([]byte, length)
		f := codec.FrameOfBuffers(mem.BufferSlice{mem.NewBuffer(&list, pool)})
		list[0] = byte(i)
		record(rec, codec.NewFrame([]byte("request")), f)
		f.Free()
	}
	assert.LessOrEqual(t, (n-pool.back)*length, bytes)
	all := recorded(t, rec)
	require.Greater(t, len(all), 300*perCall, "far more than there is memory for messages")
	whole := 0
	for i := range all {
		if ev := &all[len(all)-1-i]; ev.Kind == capture.Reply {
			require.Equal(t, length, ev.Size)
			require.Equal(t, len(ev.Payload) == 0, ev.Truncated)
			if !ev.Truncated {
				require.Equal(t, byte(n-1-whole), ev.Payload[0], "the latest, in their order")
				whole++
			}
		}
	}
	assert.Equal(t, n-pool.back, whole)
	assert.Greater(t, whole*length, bytes/4)

	missed, truncated := uint64(0), uint64(0)
	for _, ev := range drain(t, late) {
		switch {
		case ev.Kind == capture.Missed:
			missed += ev.Missed
		case ev.Truncated:
			truncated++
		}
	}
	assert.Positive(t, truncated)
	assert.Equal(t, missed+truncated, rec.Missed(), "the slow follower missed these; a follower that begins now misses nothing")
}

func TestLargeMessagesDoNotPushOutOtherCalls(t *testing.T) {
	const small, large = 300, 50
	rec := capture.NewRecorder(capture.Config{Bytes: 1 << 20})
	for range small {
		record(rec, codec.NewFrame([]byte("request")), codec.NewFrame(make([]byte, 100)))
	}
	for range large {
		record(rec, codec.NewFrame([]byte("request")), codec.NewFrame(make([]byte, 3<<20)))
	}
	assert.Len(t, recorded(t, rec), (small+large)*perCall)
}

// counting is a pool that counts returned buffers.
type counting struct{ back int }

func (p *counting) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p *counting) Put(*[]byte)       { p.back++ }

func TestRecordedMessagesMayBeReusedAtOnce(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	b := []byte("abc")
	md := metadata.Pairs("key", "value")
	_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: "/a/B", Client: true, Metadata: md})
	leg.Request(codec.NewFrame(b))
	copy(b, "xyz")
	md["key"][0] = "another"
	leg.End(nil, nil)
	leg.End(context.Canceled, nil) // only the first counts
	all := recorded(t, rec)
	require.Len(t, all, 3)
	assert.Equal(t, "value", all[0].Metadata["key"][0])
	assert.Equal(t, "abc", string(all[1].Payload))
	assert.Zero(t, all[2].Code)
}

func TestEventsOfAFollowerAreNeverOverwritten(t *testing.T) {
	const bytes = 64 << 10
	rec := capture.NewRecorder(capture.Config{Bytes: bytes})
	f := rec.Follow(true)
	record(rec, codec.NewFrame([]byte("first")), codec.NewFrame(nil))
	var held capture.Event
	for held.Kind != capture.Request {
		require.True(t, f.TryNext(&held))
	}
	later := codec.NewFrame([]byte(strings.Repeat("x", 100)))
	for range 10 * bytes / 100 {
		record(rec, later, later)
	}
	assert.Equal(t, "first", string(held.Payload))
}

// A runtime may answer Canceled itself, for example when it shuts down. That does not mean that the
// client ended the call.
func TestARecordingSaysThatTheClientEndedACall(t *testing.T) {
	canceled := status.Error(codes.Canceled, "context canceled")
	rec := capture.NewRecorder(capture.Config{})
	call := func(client context.Context) {
		ctx, front := rec.Begin(client, capture.LegInfo{Method: muxtest.Method("Stream"), Client: true})
		ctx, cancel := context.WithCancel(ctx) // as the director ends the legs of a call
		_, back := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("Stream"), Backend: "beta.io"})
		cancel()
		back.End(canceled, nil)
		front.End(canceled, nil)
	}
	gone, leave := context.WithCancel(context.Background())
	leave()
	call(context.Background())
	call(gone)
	var byClient []bool
	for _, ev := range recorded(t, rec) {
		if ev.Kind == capture.End {
			assert.Equal(t, codes.Canceled, ev.Code)
			byClient = append(byClient, capture.EndedByClient(ev.Code, ev.Message))
		}
	}
	assert.Equal(t, []bool{false, false, true, true}, byClient)
	assert.False(t, capture.EndedByClient(codes.Internal, "the client ended the call"))
}
