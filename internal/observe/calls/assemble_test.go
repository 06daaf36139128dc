package calls_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestACallWithoutItsBeginningIsStillShown(t *testing.T) {
	events := conversation(t)
	a := calls.NewAssembler(muxtest.Library, nil)
	a.Add(&capture.Event{Kind: capture.Missed, Missed: 1})
	for _, ev := range events[1:] { // without the start of the first
		c, what := a.Add(&ev)
		if what == calls.Done {
			assert.Equal(t, muxtest.Method("Put"), c.Method)
			assert.True(t, c.Partial)
			assert.Equal(t, "-", c.From(), "which is no client")
			var out bytes.Buffer
			(&calls.Printer{Out: &out, Schema: muxtest.Library}).Print(c)
			assert.Contains(t, out.String(), "its beginning was not recorded")
			break
		}
	}
	assert.Equal(t, uint64(1), a.Missed())
}

func TestKeepBytesBoundsKeptMessages(t *testing.T) {
	for keep, want := range map[int]int{0: 4000, -1: 0, 25: 25} {
		a := calls.NewAssembler(nil, nil)
		a.KeepBytes, a.Copy = keep, true
		a.Add(&capture.Event{Kind: capture.Start, Call: 1, Method: "/a/B"})
		payload := []byte("0123456789")
		for range 400 {
			a.Add(&capture.Event{Kind: capture.Request, Call: 1, Method: "/a/B", Payload: payload, Size: 10})
		}
		copy(payload, "overwritten")
		c, what := a.Add(&capture.Event{Kind: capture.End, Call: 1, Method: "/a/B"})
		require.Equal(t, calls.Done, what)
		kept := ""
		for _, m := range c.Front().Requests.Kept {
			kept += string(m.Payload)
		}
		assert.Len(t, kept, want)
		assert.NotContains(t, kept, "over")
		assert.Equal(t, 400, c.Front().Requests.Count)
		assert.Equal(t, 4000, c.Front().Requests.Bytes)
	}
}

func TestACallOfAnotherRecordingIsAnotherCall(t *testing.T) {
	a := calls.NewAssembler(nil, nil)
	for range 2 { // the first was cut off in the middle of its call
		a.Add(&capture.Event{Kind: capture.Start, Call: 1, Method: "/a/B"})
		a.Add(&capture.Event{Kind: capture.Request, Call: 1, Method: "/a/B"})
	}
	c, what := a.Add(&capture.Event{Kind: capture.End, Call: 1, Method: "/a/B"})
	require.Equal(t, calls.Done, what)
	assert.Equal(t, 1, c.Front().Requests.Count)
}

func TestEndsThatNeverComeDoNotFillTheMemory(t *testing.T) {
	a := calls.NewAssembler(nil, nil)
	for i := range 50_000 {
		a.Add(&capture.Event{Kind: capture.Start, Call: uint64(i + 1), Method: "/a/B"})
	}
	assert.LessOrEqual(t, len(a.UnderWay()), 20_000)
}

func Example() {
	a := calls.NewAssembler(muxtest.Library, nil)
	events := []capture.Event{
		{Kind: capture.Start, Call: 1, Method: "/library.v1.Library/Get"},
		{Kind: capture.Request, Call: 1, Method: "/library.v1.Library/Get", Payload: []byte("\x0a\x027f"), Size: 4},
		{Kind: capture.End, Call: 1, Method: "/library.v1.Library/Get", Mono: time.Millisecond},
	}
	filter := calls.Filter{Method: "Get|Put"}
	for i := range events {
		if call, what := a.Add(&events[i]); what == calls.Done && filter.Match(call) {
			fmt.Println(calls.ShortMethod(call.Method), call.Code, call.Took)
		}
	}
	// Output: Get OK 1ms
}
