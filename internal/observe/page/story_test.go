package page

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

func told(t *testing.T, s *Story) (out struct {
	Known   bool
	Changes []capture.Change
	Pods    []listed
	Gaps    []gap
}) {
	t.Helper()
	require.NoError(t, json.Unmarshal(s.JSON(), &out))
	return out
}

func at(second int) time.Time { return time.Unix(int64(second), 0).UTC() }

func TestAStoryHasEachChangeOnce(t *testing.T) {
	var s Story
	assert.False(t, told(t, &s).Known, "then the page infers")
	pods := 3
	gone := capture.Change{Time: at(20), What: capture.Gone, Backend: "kata.io", Was: capture.Up, Since: at(1), Pods: &pods, PID: 7}
	// The header of a recording, the recording, and the admin socket all have it, in any order.
	s.Begin(&capture.FileHeader{Changes: true, Backends: []capture.HeaderBackend{{Name: "kata.io", State: capture.Gone, Since: at(20)}, {Name: "primary", State: capture.Up, Since: at(1), Pods: &pods}}})
	s.Take(&capture.Event{Kind: capture.Changed, Change: &gone})
	s.Change(gone)
	s.Change(capture.Change{Time: at(10), What: capture.Slow, Backend: "kata.io", PID: 7})
	got := told(t, &s)
	assert.True(t, got.Known)
	require.Len(t, got.Changes, 3)
	assert.Equal(t, []string{"primary up", "kata.io slow", "kata.io gone"}, []string{
		got.Changes[0].Backend + " " + got.Changes[0].What, got.Changes[1].Backend + " " + got.Changes[1].What, got.Changes[2].Backend + " " + got.Changes[2].What})
	assert.Equal(t, 3, *got.Changes[0].Pods, "the recording may lack the event")
	assert.Equal(t, 3, *got.Changes[2].Pods, "the event says more than the header")
}

// A page said nothing of outages if the header of the recording promised changes that were cut out.
func TestAStoryInfersWhatARecordingLacks(t *testing.T) {
	call := func(second int) *calls.Call {
		return &calls.Call{Began: at(second), Ended: true, Legs: []*calls.Leg{{Header: map[string][]string{backend.HeaderKey: {"kata.io"}}}}}
	}
	promises := func(state string, since int) *capture.FileHeader {
		return &capture.FileHeader{Changes: true, Backends: []capture.HeaderBackend{{Name: "kata.io", State: state, Since: at(since)}}}
	}
	var s Story
	s.Begin(promises(capture.Up, 30))
	s.Add(call(40))
	assert.True(t, told(t, &s).Known, "one error does not make a runtime slow")
	assert.True(t, s.Add(call(20)))
	assert.False(t, told(t, &s).Known)
	assert.Empty(t, told(t, &s).Changes, "nor does Status have what the header says")
	s.Change(capture.Change{What: capture.Reloaded, Time: at(25)})
	s.Change(capture.Change{What: capture.Restarted, Backend: "kata.io", Time: at(26)})
	assert.False(t, told(t, &s).Known, "neither is a condition of a runtime")
	assert.Len(t, told(t, &s).Changes, 2)
	s.Change(capture.Change{What: capture.Gone, Backend: "kata.io", Time: at(19)})
	assert.True(t, told(t, &s).Known)
	s = Story{}
	s.Begin(promises(capture.Up, 30))
	assert.True(t, s.Add(&calls.Call{Began: at(20), Ended: true, Message: "criproxy: backend kata.io is gone since 15:04:05: connection refused"}))
	assert.False(t, told(t, &s).Known, "a call of this runtime alone has no answer from memory")
	s = Story{}
	s.Begin(promises(capture.Gone, 10))
	s.Add(call(20))
	assert.True(t, told(t, &s).Known, "it has been gone since before")
}

// The page of a recording said how many pods a runtime had when it became up, and nothing if nobody knew then.
func TestAStoryCountsThePodsOfTheEnd(t *testing.T) {
	counts := func(s *Story) (out struct{ Counts map[string]int }) {
		require.NoError(t, json.Unmarshal(s.JSON(), &out))
		return out
	}
	one, two, three := 1, 2, 3
	up := func(second int, pods *int) *capture.Event {
		return &capture.Event{Kind: capture.Changed, Change: &capture.Change{Time: at(second), What: capture.Up, Backend: "primary", Pods: pods, PID: 7}}
	}
	lists := func(s *Story, second int, pods ...string) bool {
		const method = "/runtime.v1.RuntimeService/ListPodSandbox"
		c := &calls.Call{Began: at(second), Ended: true, Legs: []*calls.Leg{{Method: method}, {Number: 1, Backend: "primary", Method: method, Ended: true, Requests: calls.Messages{Count: 1}}}}
		for _, name := range pods {
			c.Listed = append(c.Listed, calls.About{Pod: name, UID: name})
		}
		return s.Add(c)
	}
	header := func(second int, pods *int) *capture.FileHeader {
		return &capture.FileHeader{Created: at(second), Backends: []capture.HeaderBackend{{Name: "primary", State: capture.Up, Since: at(5), Pods: pods}}}
	}
	for _, known := range []*int{&two, nil} {
		var dump Story // its header comes first, and is of its end
		dump.Begin(header(60, &three))
		dump.Take(up(5, known))
		assert.Equal(t, map[string]int{"primary": 3}, counts(&dump).Counts)
	}
	var file Story // its header is of its beginning
	file.Begin(header(6, &one))
	assert.True(t, lists(&file, 10, "a", "b"))
	assert.True(t, lists(&file, 20, "a", "b", "c"))
	assert.False(t, lists(&file, 30, "a", "b", "c"), "no news")
	assert.Equal(t, map[string]int{"primary": 3}, counts(&file).Counts)
	file.Take(up(40, &one))
	assert.Equal(t, map[string]int{"primary": 1}, counts(&file).Counts)
}

func TestAStorySaysWhatIsMissing(t *testing.T) {
	var s Story
	begins := func(call uint64, second int) {
		s.Take(&capture.Event{Kind: capture.Start, Call: call, Time: at(second)})
	}
	s.Begin(&capture.FileHeader{})
	begins(101, 1)
	begins(103, 1) // 102 is concurrent
	s.Add(&calls.Call{ID: 99, Partial: true})
	s.Take(&capture.Event{Kind: capture.Missed, Missed: 5, Time: at(2)})
	s.Begin(&capture.FileHeader{}) // the same recording, after the connection broke
	begins(110, 3)
	assert.Equal(t, []gap{{Calls: 99}, {Time: 2000, Events: 5}, {Time: 3000, Calls: 6}}, told(t, &s).Gaps, "of the first hundred, one is there in part")
	s.Begin(&capture.FileHeader{}) // another recording
	begins(1, 4)
	assert.Len(t, told(t, &s).Gaps, 3)
}

func TestAStoryKnowsThePodsOfLists(t *testing.T) {
	var s Story
	lists := func(second int, names ...string) bool {
		c := &calls.Call{Began: at(second), Own: true, Legs: []*calls.Leg{{Number: 1, Backend: "kata.io"}}}
		for _, name := range names {
			c.Listed = append(c.Listed, calls.About{Namespace: "ns", Pod: name, UID: "uid-" + name, IDs: []string{name}})
		}
		news := s.Add(c)
		assert.Empty(t, c.Listed, "or each list would stay in memory")
		return news
	}
	assert.True(t, lists(1, "a", "b"))
	assert.False(t, lists(2, "a"))
	pod := func(name string, from, to, gone float64) listed {
		return listed{Namespace: "ns", Pod: name, UID: "uid-" + name, Backend: "kata.io", From: from, To: to, Gone: gone}
	}
	assert.Equal(t, []listed{pod("a", 1000, 2000, 0), pod("b", 1000, 1000, 0)}, told(t, &s).Pods)
}

func TestAPodExistsFromItsCreationToTheFirstListWithoutIt(t *testing.T) {
	var s Story
	list := func(second int, request, backend string, names ...string) {
		c := &calls.Call{Began: at(second), Ended: true, Legs: []*calls.Leg{{Method: "/runtime.v1.RuntimeService/ListPodSandbox"},
			{Number: 1, Backend: backend, Method: "/runtime.v1.RuntimeService/ListPodSandbox", Ended: true, Requests: calls.Messages{Count: 1, Bytes: len(request), Last: calls.Message{Payload: []byte(request), Size: len(request)}}}}}
		for _, name := range names {
			c.Listed = append(c.Listed, calls.About{Pod: name, UID: name, Created: at(second / 2)})
		}
		s.Add(c)
	}
	pods := func() map[string][2]float64 {
		all := map[string][2]float64{}
		for _, p := range told(t, &s).Pods {
			all[p.Pod] = [2]float64{p.From, p.Gone}
		}
		return all
	}
	s.Add(&calls.Call{Began: at(9), Own: true, Legs: []*calls.Leg{{Number: 1, Backend: "kata.io"}}, Listed: []calls.About{{Pod: "a", UID: "a"}}})
	const all, empty, ready = "", "\x0a\x00", "\x0a\x02\x12\x00"
	list(20, all, "kata.io", "a", "b")
	list(30, all, "primary", "c")
	list(40, ready, "kata.io", "b")
	assert.Equal(t, map[string][2]float64{"a": {10_000}, "b": {10_000}, "c": {15_000}}, pods(), "the last list was of some pods only")
	list(50, empty, "kata.io", "b")
	list(60, all, "kata.io", "b")
	assert.Equal(t, map[string][2]float64{"a": {10_000, 50_000}, "b": {10_000}, "c": {15_000}}, pods())
	s.Add(&calls.Call{Began: at(70), Ended: true, About: calls.About{Pod: "a", UID: "a", Created: at(5)}, Legs: []*calls.Leg{{}, {Number: 1, Backend: "kata.io"}}})
	assert.Equal(t, [2]float64{5000}, pods()["a"], "a status shows it")
}

// The bar of a container that had started before the recording began in its middle.
func TestAContainerRunsSinceItStartedOrWasShown(t *testing.T) {
	var s Story
	shows := func(second int, running bool, started time.Time) (news bool) {
		return s.Add(&calls.Call{Began: at(second), Ended: true, Listed: []calls.About{{Pod: "a", UID: "a", Container: "main", IDs: []string{"c"}, Running: running, Started: started}}})
	}
	assert.True(t, shows(30, false, time.Time{}), "the pod")
	assert.Empty(t, told(t, &s).Pods[0].Runs)
	for _, c := range []struct {
		second  int
		started time.Time
		news    bool
		from    float64
	}{
		{40, time.Time{}, true, 40_000},
		{41, time.Time{}, false, 40_000},
		{39, time.Time{}, true, 39_000},
		{42, at(10), true, 10_000}, // when it was created
		{43, at(12), true, 12_000}, // when it was started, in a status
		{44, at(10), false, 12_000},
		{38, time.Time{}, false, 12_000},
	} {
		assert.Equal(t, c.news, shows(c.second, true, c.started), "%+v", c)
		assert.Equal(t, []run{{Container: "main", ID: "c", From: c.from}}, told(t, &s).Pods[0].Runs, "%+v", c)
	}
	s.Add(&calls.Call{Began: at(50), Ended: true, About: calls.About{Pod: "b", UID: "b", Container: "main", IDs: []string{"d"}, Running: true}})
	assert.Equal(t, []run{{Container: "main", ID: "d", From: 50_000}}, told(t, &s).Pods[1].Runs, "a status shows it")
}
