package telemetry

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// at is a time that is n seconds into the story of a test.
func at(n int) time.Time { return time.Unix(1_000_000_000+int64(n), 0).UTC() }

// restored returns the condition of beta.io for the process after one that has ended, from its evidence and its changes.
func restored(t *testing.T, evidence Condition, all ...capture.Change) Condition {
	t.Helper()
	dir := t.TempDir()
	c := NewChanges(&Recording{}, dir)
	for _, one := range all {
		one.Backend = "beta.io"
		c.Add(one)
	}
	require.NoError(t, c.write())
	next := NewChanges(&Recording{}, dir)
	next.Replay(Conditions{Backends: map[string]Condition{"beta.io": evidence}}, func(*capture.Change) {})
	return next.Of("beta.io")
}

// became notes a condition of beta.io.
func became(c *Changes, what string, since time.Time, why string) (capture.Change, bool) {
	return c.Became(capture.Change{Backend: "beta.io", What: what, Time: since, Why: why})
}

// Evidence is written every few seconds, changes at once: after a crash, status knew less than the history.
func TestAfterACrashTheNotesAreThoseOfTheHistory(t *testing.T) {
	up := capture.Change{What: capture.Up, Time: at(1)}
	slow := capture.Change{What: capture.Slow, Time: at(2), Was: capture.Up, Since: at(1), Why: "late"}
	gone := capture.Change{What: capture.Gone, Time: at(3), Was: capture.Slow, Since: at(2), Why: "killed", Pods: new(7), Containers: new(9)}
	again := capture.Change{What: capture.Up, Time: at(5), Was: capture.Gone, Since: at(3)}
	old := Condition{Runtime: "containerd 2", API: []string{"v1"}, State: capture.Up, Since: at(1)}
	was := admin.Outage{State: capture.Slow, From: at(2), To: at(3), Error: "late"}

	k := restored(t, old, up, slow, gone)
	assert.Equal(t, Condition{
		Runtime: "containerd 2", API: []string{"v1"}, State: capture.Gone, Since: at(3), Why: "killed",
		Outages: []admin.Outage{{State: capture.Gone, From: at(3), Error: "killed", Pods: new(7), Containers: new(9)}, was},
	}, k)
	k = restored(t, old, up, slow, gone, again)
	assert.Empty(t, k.State, "nobody has looked since")
	assert.Equal(t, at(5), k.Outages[0].To)

	k = restored(t, old, up, again)
	require.Len(t, k.Outages, 1, "those before are lost, but it says itself what was before")
	assert.Equal(t, admin.Outage{State: capture.Gone, From: at(3), To: at(5)}, k.Outages[0])

	k = restored(t, Condition{State: capture.Gone, Since: at(3), Why: "killed, and still away", Outages: []admin.Outage{{State: capture.Gone, From: at(3)}}}, up, slow, gone)
	assert.Equal(t, "killed, and still away", k.Why, "the evidence is of the same condition, and newer")
	assert.Equal(t, old.Runtime, restored(t, old).Runtime)
	assert.Equal(t, capture.Gone, restored(t, old, gone, capture.Change{What: capture.Restarted, Time: at(4)}).State, "a restart is no condition")
	assert.Empty(t, restored(t, old, up, slow, capture.Change{What: capture.Removed, Time: at(4), Was: capture.Slow, Since: at(2)}).State)
}

// After a reload in an outage, status and the event gave two reasons. Both begin with the event's now.
func TestAnOutageKeepsTheReasonOfItsEvent(t *testing.T) {
	for name, one := range map[string]struct{ first, later, now string }{
		"killed":         {"cannot be reached at /run/a.sock: EOF", "cannot be reached at /run/a.sock: connection refused", ""},
		"hangs":          {"accepts connections, and has answered nothing for 10s", "accepts connections, and has answered nothing for 5s", ""},
		"hangs and ends": {"accepts connections, and has answered nothing for 10s", "cannot be reached at /run/a.sock: EOF", "; now: cannot be reached at /run/a.sock: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewChanges(&Recording{}, "")
			became(c, capture.Gone, at(1), one.first)
			said, changed := became(c, capture.Gone, at(1), one.later)
			assert.False(t, changed)
			k := c.Of("beta.io")
			assert.Equal(t, one.first, k.Why)
			assert.Equal(t, one.first, k.Outages[0].Error)
			assert.Equal(t, one.first+one.now, k.Reason())
			assert.Equal(t, k.Reason(), said.Why)
			became(c, capture.Gone, at(1), one.first)
			k = c.Of("beta.io")
			assert.Equal(t, one.first, k.Reason())
		})
	}
}

// A clock that was set back must not make an outage of the future.
func TestATimeToComeIsNotRestored(t *testing.T) {
	future := time.Now().Add(24 * time.Hour)
	k := restored(t, Condition{},
		capture.Change{What: capture.Up, Time: future},
		capture.Change{What: capture.Slow, Time: at(1), Was: capture.Up, Since: future},
	)
	assert.Equal(t, at(1), k.Since, "the order counts")
	k = restored(t, Condition{}, capture.Change{What: capture.Gone, Time: future})
	assert.WithinDuration(t, time.Now(), k.Since, time.Minute)
	next := NewChanges(&Recording{}, "")
	next.RestoreConditions(Conditions{Backends: map[string]Condition{"beta.io": k}})
	c, changed := became(next, capture.Up, time.Now(), "")
	assert.True(t, changed)
	assert.WithinDuration(t, time.Now(), c.Time, time.Minute)
}

// The condition of a runtime was lost with its name: it was connecting since the process had begun.
func TestAConditionFollowsTheRuntimeToItsNewName(t *testing.T) {
	begin := func() (r *Changes, story func() []string) {
		r = NewChanges(&Recording{}, "")
		for name, what := range map[string]string{"a": capture.Up, "b": capture.Gone} {
			r.Became(capture.Change{Backend: name, What: capture.Slow, Time: at(1)})
			why := "killed"
			if what == capture.Up {
				why = ""
			}
			r.Became(capture.Change{Backend: name, What: what, Time: at(2), Why: why})
		}
		before := len(r.Latest())
		said := func(c capture.Change) string {
			s := fmt.Sprintf("%s %s at %d", c.Backend, c.What, c.Time.Unix()-at(0).Unix())
			if c.Was != "" {
				s += fmt.Sprintf(", was %s since %d", c.Was, c.Since.Unix()-at(0).Unix())
			}
			if c.Pods != nil {
				s += fmt.Sprintf(", %d pods", *c.Pods)
			}
			if c.Why != "" {
				s += ": " + c.Why
			}
			return s
		}
		return r, func() (all []string) {
			for _, c := range r.Latest()[before:] {
				all = append(all, said(c))
			}
			return all
		}
	}
	pods := func(name string) (pods, containers *int) { return new(len(name) + 6), nil }
	for what, c := range map[string]struct {
		sources map[string]string
		want    []string
	}{
		"as before": {map[string]string{"a": "a", "b": "b"}, nil},
		"renamed": {map[string]string{"a": "a", "c": "b"}, []string{
			"b removed at 9, was gone since 2, 7 pods: it is called c now", "c gone at 2, 7 pods: killed"}},
		"swapped": {map[string]string{"a": "b", "b": "a"}, []string{
			"a removed at 9, was up since 2, 7 pods: it is called b now", "b removed at 9, was gone since 2, 7 pods: it is called a now",
			"a gone at 2, 7 pods: killed", "b up at 2, 7 pods"}},
		"taken away": {map[string]string{"a": "a"}, []string{"b removed at 9, was gone since 2, 7 pods"}},
		"replaced": {map[string]string{"a": "b", "b": ""}, []string{
			"a removed at 9, was up since 2, 7 pods", "b removed at 9, was gone since 2, 7 pods: it is called a now", "a gone at 2, 7 pods: killed"}},
	} {
		r, story := begin()
		r.Follow(c.sources, at(9), pods, nil)
		assert.Equal(t, c.want, story(), what)
		for name := range c.sources {
			k := r.Of(name)
			assert.False(t, k.Since.IsZero(), "%s: %s", what, name)
			if k.State == capture.Gone {
				assert.True(t, k.Outages[0].To.IsZero(), what)
			}
		}
	}
	r, _ := begin()
	r.Follow(map[string]string{"a": "a", "c": "b"}, at(9), pods, nil)
	r.Follow(map[string]string{"a": "a", "b": "c"}, at(10), pods, nil)
	assert.Len(t, r.Of("b").Outages, 2, "renamed back, the outage is still one")
	r, story := begin()
	r.Follow(map[string]string{"a": "a", "b": "b", "new": "new"}, at(9), pods, nil)
	assert.Empty(t, story())
	assert.Equal(t, at(9), r.Of("new").Since, "connecting since it was added")
	c, _ := r.Became(capture.Change{Backend: "new", What: capture.Gone, Time: at(8)})
	assert.Equal(t, at(8), c.Time)
	assert.Zero(t, c.Since)
}

// What happens while another process takes over, that process notes. If it does not take over, this one notes all of it, in
// order.
func TestAProcessThatHandsOverNotesOnlyIfItGoesOn(t *testing.T) {
	c := NewChanges(&Recording{}, "")
	var noted []int
	note := func(n int) { c.Do(func() { noted = append(noted, n) }) }
	note(1)
	c.Hold()
	note(2)
	note(3)
	assert.Equal(t, []int{1}, noted)
	c.GoOn()
	note(4)
	assert.Equal(t, []int{1, 2, 3, 4}, noted)
	c.Hold()
	for range maxWaiting + 5 {
		note(5)
	}
	assert.Equal(t, []int{1, 2, 3, 4}, noted)
	assert.Len(t, c.waiting, maxWaiting, "a long silence does not fill the memory")
}

func TestARuntimeIsAnotherOneThanBeforeOnlyAtTheSameAddress(t *testing.T) {
	const version, address, process = "containerd 2.4", "/run/a.sock", "7 since 100"
	for name, one := range map[string]struct{ version, address, process, want string }{
		"nothing has changed":      {version, address, process, ""},
		"another version":          {"containerd 2.5", address, process, capture.Replaced},
		"a restart for an upgrade": {"containerd 2.5", address, "8 since 200", capture.Replaced},
		"a restart":                {version, address, "8 since 200", capture.Restarted},
		"its number once more":     {version, address, "7 since 200", capture.Restarted},
		"an unknown process":       {version, address, "", ""},
		"another address":          {"containerd 2.5", "/run/b.sock", "8 since 200", ""},
		"no answer":                {"", address, "8 since 200", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var k Condition
			_, changed := k.is(version, address, process)
			assert.False(t, changed, "the first answer")
			c, changed := k.is(one.version, one.address, one.process)
			assert.Equal(t, one.want, c.What)
			assert.Equal(t, one.want != "", changed)
		})
	}
	c := NewChanges(&Recording{}, "")
	c.Is("kata.io", version, nil, "/run/b.sock", "9 since 90") // the runtime that had this name before
	c.Is("beta.io", version, nil, address, process)
	c.Follow(map[string]string{"kata.io": "beta.io"}, time.Now(), func(string) (pods, containers *int) { return nil, nil }, nil)
	c.Is("kata.io", version, nil, address, process)
	assert.Empty(t, c.Latest(), "it only has another name")
}

// A restart while criproxy was down was found only if the version had changed.
func TestARestartWhileNobodyLookedIsFound(t *testing.T) {
	var kept Conditions
	c := NewChanges(&Recording{}, "")
	c.Is("beta.io", "containerd 2.4", nil, "/run/a.sock", "7 since 100")
	text, err := json.Marshal(c.Conditions())
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &kept))
	next := NewChanges(&Recording{}, "")
	next.RestoreConditions(kept)
	next.Is("beta.io", "containerd 2.4", nil, "/run/a.sock", "7 since 100")
	assert.Empty(t, next.Latest(), "it is the same process")
	next.Is("beta.io", "containerd 2.4", nil, "/run/a.sock", "8 since 200")
	require.Len(t, next.Latest(), 1)
	assert.Equal(t, "process 8 serves it now, process 7 did before (containerd 2.4)", next.Latest()[0].Why)
}
