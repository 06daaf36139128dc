package capture_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A follower that wants only a part of what is recorded still says what is missing in that part, and only that.
func TestAFollowerOfAPartSaysWhatIsMissingInIt(t *testing.T) {
	rec := archived(0)
	for range 30 {
		session(t, rec)
	}
	settle(rec)
	capture.NewPassage(rec).Add(&capture.Event{Kind: capture.Missed, Missed: 7})
	session(t, rec)
	all := recorded(t, rec)
	at := slices.IndexFunc(all, func(ev capture.Event) bool { return ev.Kind == capture.Missed })
	require.Positive(t, at)
	since := all[at-10].Time
	read := func(want capture.Want) []capture.Event { return there(rec.FollowWanted(want)) }
	missing := func(events []capture.Event) (n uint64) {
		for _, ev := range events {
			n += ev.Missed
		}
		return n
	}
	for range 2 { // in the ring, and in the archive
		assert.Equal(t, uint64(7), missing(read(capture.Want{Since: since})))
		assert.Equal(t, uint64(7), missing(read(capture.Want{From: all[at-10].Seq})))
		assert.Zero(t, missing(read(capture.Want{From: all[at+2].Seq})))
		assert.Zero(t, missing(read(capture.Want{Until: all[at-2].Time.Add(-1)})))
		assert.Equal(t, all[at-10].Seq, read(capture.Want{From: all[at-10].Seq})[0].Seq)
		settle(rec)
	}
}

// What a client reads from blocks is what the recorder would have decoded for it, what is missing in it included.
func TestAReaderOfBlocksHasWhatAFollowerHas(t *testing.T) {
	rec := archived(2 << 20)
	_, stream := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true})
	for i := range 1200 {
		var fails error
		if i == 700 {
			fails = errors.New("no")
		}
		if i%90 == 0 {
			session(t, rec)
		}
		if i == 500 {
			capture.NewPassage(rec).Add(&capture.Event{Kind: capture.Missed, Missed: 7})
		}
		if poll(t, rec, i, fails); i%5 == 0 {
			settle(rec)
		}
	}
	stream.End(errors.New("no"), nil)
	read := func(want capture.Want) []capture.Event { return there(rec.FollowWanted(want)) }
	whole, all := settle(rec), read(capture.Want{})
	at := func(part int) *capture.Event { return &all[len(all)*part/8] }
	for name, want := range map[string]capture.Want{
		"all": {}, "from": {From: at(5).Seq}, "since": {Since: at(5).Time}, "until": {Since: at(2).Time, Until: at(4).Time}, "shown": {Since: at(1).Time, Shown: at(5).Time},
		"large": {Large: capture.LargeNew}, "method": {Method: func(m string) bool { return m == muxtest.Method("Get") }}, "failed": {Failed: true},
	} {
		blocks, last := rec.Blocks(&header, want)
		assert.Equal(t, rec.Recorded(), last)
		file := slices.Concat(blocks...)
		_, got := decode(t, file)
		assert.Equal(t, read(want), got, name)
		switch name {
		case "from", "since", "until":
			assert.Less(t, len(file), len(whole), name)
		}
	}
}

// Somebody sets the clock back while a follower of the last minutes waits. What comes then is not too old for it.
func TestAClockThatIsSetBackHidesNothingThatComes(t *testing.T) {
	rec := archived(0)
	session(t, rec)
	f := rec.FollowWanted(capture.Want{Since: time.Now().Add(-time.Minute)})
	var ev capture.Event
	for f.TryNext(&ev) {
	}
	ev.Seq, ev.Call, ev.Time = ev.Seq+1, ev.Call+1, time.Now().Add(-time.Hour)
	rec.Add(&ev)
	assert.True(t, f.TryNext(&ev))
}
