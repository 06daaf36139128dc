package page

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

func testHistory() *history {
	h := newHistory()
	h.follow(&calls.Printer{Schema: codec.NewSchema()}, &capture.FileHeader{})
	return h
}

func call(bytes int, ended bool) *calls.Call {
	return &calls.Call{Method: "/a.B/C", Began: time.Unix(1, 0), Ended: ended, Legs: []*calls.Leg{{Ended: ended, Replies: calls.Messages{Bytes: bytes}}}}
}

// rows are the rows after an entry: their keys and codes.
func rows(t *testing.T, h *history, at place, most int) (all [][2]int, last place) {
	t.Helper()
	b, last, _ := h.since(at, most)
	var read struct{ R [][]any }
	require.NoError(t, json.Unmarshal(b.JSON(), &read))
	for _, r := range read.R {
		all = append(all, [2]int{int(r[0].(float64)), int(r[7].(float64))})
	}
	return all, last
}

func TestHistoryIsReadAtAnyPace(t *testing.T) {
	h := testHistory()
	for range 5 {
		h.add(call(1, true))
	}
	got, last := rows(t, h, place{}, 3)
	assert.Equal(t, [][2]int{{1, 0}, {2, 0}, {3, 0}}, got)
	got, last = rows(t, h, last, 3)
	assert.Equal(t, [][2]int{{4, 0}, {5, 0}}, got)
	_, _, changed := h.since(last, 3)
	h.add(call(1, true))
	<-changed
	got, _ = rows(t, h, last, 3)
	assert.Equal(t, [][2]int{{6, 0}}, got)
}

func TestACallUnderWayKeepsItsKey(t *testing.T) {
	h := testHistory()
	long := call(1, false)
	h.underWay([]*calls.Call{long})
	h.underWay([]*calls.Call{long}) // is there already
	h.add(call(1, true))
	long.Ended, long.Legs[0].Ended = true, true
	h.add(long)
	got, _ := rows(t, h, place{}, 10)
	assert.Equal(t, [][2]int{{1, -1}, {2, 0}, {1, 0}}, got)
	_, ok := h.opened(1)
	assert.True(t, ok)
}

func TestAProcessThatEndsLosesItsCalls(t *testing.T) {
	h := testHistory()
	h.underWay([]*calls.Call{call(1, false)})
	h.end()
	h.end()
	got, _ := rows(t, h, place{}, 10)
	assert.Equal(t, [][2]int{{1, -1}, {1, -2}}, got)
}

// What was rewritten takes long to find out, so rows come without it. It follows, that of the latest calls first.
func TestRowsDoNotWaitForWhatWasRewritten(t *testing.T) {
	h := testHistory()
	for i := range 4 {
		c := call(1, true)
		c.Legs = append(c.Legs, &calls.Leg{Number: 1, Backend: "beta.io", Ended: true, Method: c.Legs[0].Method})
		if i > 0 {
			c.Legs[1].Method = "/b.B/C"
		}
		h.add(c)
	}
	h.underWay([]*calls.Call{call(1, false)})
	changes := func(b *Batch) (all []int) {
		for _, r := range b.rows {
			all = append(all, r[19].(int))
		}
		return all
	}
	b, at, _ := h.since(place{}, 10)
	assert.Equal(t, []int{unknown, unknown, unknown, unknown, 0}, changes(&b))
	ended := h.endedBetween(place{}, at)
	assert.Equal(t, []uint64{1, 2, 3, 4}, ended)
	found, rest := h.rewritten(ended, 0)
	assert.Empty(t, found.Keys, "there was no time")
	assert.Equal(t, ended, rest)
	found, rest = h.rewritten([]uint64{1, 3, 4, 999}, time.Minute)
	assert.Empty(t, rest)
	assert.Equal(t, rewrites{[]uint64{4, 3, 1}, []int{1, 1, 0}}, found)
	b, _, _ = h.since(place{}, 10)
	assert.Equal(t, []int{0, unknown, 1, 1, 0}, changes(&b), "another page gets what is found already")
	assert.Equal(t, []uint64{1, 2, 3, 4}, h.endedBetween(place{}, at), "a page that comes back asks again")
	assert.Equal(t, []uint64{1, 2}, h.endedBetween(place{}, place{seq: 2}))
	assert.Equal(t, []uint64{3, 4}, h.endedBetween(place{seq: 2}, at))
}

func TestHistoryIsBounded(t *testing.T) {
	h := testHistory()
	for range maxCalls + 10 {
		h.add(call(1, true))
	}
	assert.Len(t, h.entries, maxCalls)
	got, _ := rows(t, h, place{}, 1)
	assert.Equal(t, 11, got[0][0], "the oldest make room")
	b, at, _ := h.since(place{}, 1)
	assert.Contains(t, string(b.JSON()), `"m":10}`, "a reader learns how many it missed")
	b, _, _ = h.since(at, 1)
	assert.NotContains(t, string(b.JSON()), `"m":`)
	_, ok := h.opened(10)
	assert.False(t, ok)

	// Large messages take the place of earlier ones, whose calls stay in the table.
	large := func(bytes int) (key uint64) {
		h.add(call(bytes, true))
		return h.next
	}
	first, second := large(maxBytes/2), large(maxBytes/2)
	assert.LessOrEqual(t, h.bytes, maxBytes)
	assert.Len(t, h.entries, maxCalls)
	_, ok = h.opened(first)
	assert.False(t, ok, "its messages have gone")
	_, ok = h.opened(second)
	assert.True(t, ok)
	last := large(3 * maxBytes)
	_, ok = h.opened(last)
	assert.True(t, ok, "the latest is kept, however large: its messages were cut")
	large(1)
	assert.LessOrEqual(t, h.bytes, maxBytes)
	got, _ = rows(t, h, place{h.entries[maxCalls-5].seq, h.entries[maxCalls-5].ended}, 4)
	assert.Len(t, got, 4, "no row has gone")
}
