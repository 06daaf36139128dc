package server

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// at is a time that is n seconds into the story of a test.
func at(n int) time.Time { return time.Unix(1_000_000_000+int64(n), 0).UTC() }

// told is a story: each change with the one before.
func told(all ...capture.Change) func(func(*capture.Change)) {
	return func(do func(*capture.Change)) {
		for i := range all {
			all[i].Backend = "beta.io"
			do(&all[i])
		}
	}
}

func restored(evidence noted, replay func(func(*capture.Change))) noted {
	var r records
	r.replayNotes(map[string]noted{"beta.io": evidence}, nil, replay)
	return r.of("beta.io").notes.list()
}

// Evidence is written every few seconds, changes at once: after a crash, status knew less than the history.
func TestAfterACrashTheNotesAreThoseOfTheHistory(t *testing.T) {
	up := capture.Change{What: capture.Up, Time: at(1)}
	slow := capture.Change{What: capture.Slow, Time: at(2), Was: capture.Up, Since: at(1), Why: "late"}
	gone := capture.Change{What: capture.Gone, Time: at(3), Was: capture.Slow, Since: at(2), Why: "killed", Pods: new(7), Containers: new(9)}
	again := capture.Change{What: capture.Up, Time: at(5), Was: capture.Gone, Since: at(3)}
	old := noted{Runtime: "containerd 2", API: []string{"v1"}, Condition: capture.Up, Since: at(1)}
	was := admin.Outage{State: capture.Slow, From: at(2), To: at(3), Error: "late"}

	n := restored(old, told(up, slow, gone))
	assert.Equal(t, noted{
		Runtime: "containerd 2", API: []string{"v1"}, Condition: capture.Gone, Since: at(3), Why: "killed",
		Outages: []admin.Outage{{State: capture.Gone, From: at(3), Error: "killed", Pods: new(7), Containers: new(9)}, was},
	}, n)
	n = restored(old, told(up, slow, gone, again))
	assert.Empty(t, n.Condition, "nobody has looked since")
	assert.Equal(t, at(5), n.Outages[0].To)

	n = restored(old, told(up, again))
	require.Len(t, n.Outages, 1, "those before are lost, but it says itself what was before")
	assert.Equal(t, admin.Outage{State: capture.Gone, From: at(3), To: at(5)}, n.Outages[0])

	n = restored(noted{Condition: capture.Gone, Since: at(3), Why: "killed, and still away", Outages: []admin.Outage{{State: capture.Gone, From: at(3)}}}, told(up, slow, gone))
	assert.Equal(t, "killed, and still away", n.Why, "the evidence is of the same condition, and newer")
	assert.Equal(t, old.Runtime, restored(old, told()).Runtime)
	assert.Empty(t, restored(old, told(up, slow, capture.Change{What: capture.Removed, Time: at(4), Was: capture.Slow, Since: at(2)})).Condition)
}

// After a reload in an outage, status and the event gave two reasons. Both begin with the event's now.
func TestAnOutageKeepsTheReasonOfItsEvent(t *testing.T) {
	for name, one := range map[string]struct{ first, later, now string }{
		"killed":         {"cannot be reached at /run/a.sock: EOF", "cannot be reached at /run/a.sock: connection refused", ""},
		"hangs":          {"accepts connections, and has answered nothing for 10s", "accepts connections, and has answered nothing for 5s", ""},
		"hangs and ends": {"accepts connections, and has answered nothing for 10s", "cannot be reached at /run/a.sock: EOF", "; now: cannot be reached at /run/a.sock: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			var n notes
			n.became(capture.Gone, at(1), errors.New(one.first), nil, nil)
			_, changed := n.became(capture.Gone, at(1), errors.New(one.later), nil, nil)
			assert.False(t, changed)
			k := n.list()
			assert.Equal(t, one.first, k.Why)
			assert.Equal(t, one.first, k.Outages[0].Error)
			assert.Equal(t, one.first+one.now, k.reason())
			n.became(capture.Gone, at(1), errors.New(one.first), nil, nil)
			k = n.list()
			assert.Equal(t, one.first, k.reason())
		})
	}
}

// After a restart the log gave another reason than the event, and a time of another form.
func TestTheLogOfAnOutageThatGoesOnHasTheReasonOfItsEvent(t *testing.T) {
	const event, later = "accepts connections, and has answered nothing for 10s", "accepts connections, and has answered nothing for 5s"
	b := &backend{cfg: config.Backend{Name: "goeson.io"}, notes: &notes{}, notify: func(capture.Change, bool) {}}
	b.notes.became(capture.Gone, at(1), errors.New(event), nil, nil)
	b.changed(memory.State{Condition: memory.Gone, Since: at(1), Err: errors.New(later)})
	since := at(1).Local().Format("2006-01-02 15:04:05")
	assert.NotEmpty(t, testkit.LogLines(`"Backend is still gone, as before the reload or this process"`, `"goeson.io"`, event, `"`+since+`"`))
}

// A clock that was set back must not make an outage of the future.
func TestATimeToComeIsNotRestored(t *testing.T) {
	future := time.Now().Add(24 * time.Hour)
	n := restored(noted{}, told(
		capture.Change{What: capture.Up, Time: future},
		capture.Change{What: capture.Slow, Time: at(1), Was: capture.Up, Since: future},
	))
	assert.Equal(t, at(1), n.Since, "the order counts")
	n = restored(noted{}, told(capture.Change{What: capture.Gone, Time: future}))
	assert.WithinDuration(t, time.Now(), n.Since, time.Minute)
	var later notes
	later.restore(n, false)
	c, changed := later.became(capture.Up, time.Now(), nil, nil, nil)
	assert.True(t, changed)
	assert.WithinDuration(t, time.Now(), c.Time, time.Minute)
}

// The condition of a runtime was lost with its name: it was connecting since the process had begun.
func TestAConditionFollowsTheRuntimeToItsNewName(t *testing.T) {
	gone := errors.New("killed")
	begin := func() (r *records, story func() []string) {
		r = &records{}
		var all []string
		r.onChange = func(c capture.Change) {
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
			all = append(all, s)
		}
		for name, what := range map[string]string{"a": capture.Up, "b": capture.Gone} {
			n := &r.of(name).notes
			n.became(capture.Slow, at(1), nil, nil, nil)
			why := gone
			if what == capture.Up {
				why = nil
			}
			n.became(what, at(2), why, nil, nil)
		}
		return r, func() []string { return all }
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
		r.follow(c.sources, at(9), pods)
		assert.Equal(t, c.want, story(), what)
		for name := range c.sources {
			k := r.of(name).notes.list()
			assert.False(t, k.Since.IsZero(), "%s: %s", what, name)
			if k.Condition == capture.Gone {
				assert.True(t, k.Outages[0].To.IsZero(), what)
			}
		}
	}
	r, _ := begin()
	r.follow(map[string]string{"a": "a", "c": "b"}, at(9), pods)
	r.follow(map[string]string{"a": "a", "b": "c"}, at(10), pods)
	assert.Len(t, r.of("b").notes.list().Outages, 2, "renamed back, the outage is still one")
	r, story := begin()
	r.follow(map[string]string{"a": "a", "b": "b", "new": "new"}, at(9), pods)
	n := &r.of("new").notes
	assert.Equal(t, at(9), n.list().Since, "connecting since it was added")
	c, _ := n.became(capture.Gone, at(8), gone, nil, nil)
	assert.Equal(t, at(8), c.Time)
	assert.Zero(t, c.Since)
	assert.Empty(t, story())
}
