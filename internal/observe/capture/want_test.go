package capture_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
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
	read := func(want capture.Want) (got []capture.Event) {
		f := rec.FollowWanted(want)
		for ev := (capture.Event{}); f.TryNext(&ev); {
			got = append(got, ev)
		}
		return got
	}
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
