package capture_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// Three processes follow each other. The first one still serves a call that it had when it handed over, and takes others.
func TestAPassageAddsWhatTheProcessBeforeRecordsLater(t *testing.T) {
	first, second, third := archived(0), archived(0), archived(0)
	begin := func(rec *capture.Recorder) *capture.Leg {
		_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Get"), Client: true})
		return leg
	}
	old := begin(first)
	data, rest := first.Snapshot(&header)
	require.NoError(t, second.Restore(data))
	begin(second).End(nil, nil)
	data, restOfSecond := second.Snapshot(&header)
	require.NoError(t, third.Restore(data))
	begin(third).End(nil, nil)
	old.End(nil, nil)
	later := begin(first)
	later.Request(muxtest.Frame(t, "GetRequest", `book_id: "7f"`))
	later.End(nil, nil)

	pass := func(from *capture.Follower, p *capture.Passage) (n int) {
		var ev capture.Event
		for ; from.TryNext(&ev); n++ {
			p.Add(&ev)
		}
		return n
	}
	toSecond, toThird := capture.NewPassage(second), capture.NewPassage(third)
	require.Equal(t, 4, pass(rest, toSecond))
	require.Equal(t, 4, pass(restOfSecond, toThird))
	for name, rec := range map[string]*capture.Recorder{"second": second, "third": third} {
		begun, ended := map[uint64]bool{}, map[uint64]bool{}
		settle(rec)
		for f, ev := rec.Follow(true), (capture.Event{}); f.TryNext(&ev); {
			switch ev.Kind {
			case capture.Start:
				require.NotContains(t, begun, ev.Call, name)
				begun[ev.Call] = true
			case capture.End:
				require.NotContains(t, ended, ev.Call, name)
				ended[ev.Call] = true
			default:
				assert.Equal(t, capture.Request, ev.Kind)
			}
		}
		assert.Equal(t, begun, ended, name)
		own := 0
		for f, ev := rec.FollowOwn(), (capture.Event{}); f.TryNext(&ev); own++ {
			assert.False(t, ev.Passed)
		}
		assert.Equal(t, 2, own, "%s: its own call, which is also all that its capture gets", name)
	}
	assert.Empty(t, toThird.Break())
	begin(first)
	pass(rest, toSecond)
	pass(restOfSecond, toThird)
	assert.Equal(t, []string{muxtest.Method("Get")[1:]}, toThird.Break())
	begin(third).End(nil, nil)
	all := recorded(t, third)
	assert.Equal(t, uint64(1), all[len(all)-3].Missed)
}

// After a handover, tail of failed calls lacked one that had begun before.
func TestAFollowerOfFailedCallsHasThoseThatBeganBeforeAHandover(t *testing.T) {
	first, second := archived(0), archived(0)
	_, leg := first.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Get"), Client: true})
	data, rest := first.Snapshot(&header)
	require.NoError(t, second.Restore(data))
	session(t, second)
	settle(second)
	started := func() bool {
		var ev capture.Event
		f := second.FollowWanted(capture.Want{Failed: true})
		return f.TryNext(&ev) && ev.Seq == 1
	}
	require.False(t, started(), "it may be of a process that has crashed")
	passage := capture.NewPassage(second)
	assert.True(t, started(), "it may still fail")
	leg.End(status.Error(codes.NotFound, ""), nil)
	for ev := (capture.Event{}); rest.TryNext(&ev); {
		passage.Add(&ev)
	}
	settle(second)
	passage.End()
	assert.True(t, started(), "it has failed")
}
