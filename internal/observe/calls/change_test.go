package calls_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

func gone() *capture.Change {
	began := time.Date(2026, 11, 24, 22, 26, 30, 0, time.Local)
	pods, containers := 1, 12
	return &capture.Change{
		Time: began, What: capture.Gone, Backend: "beta.io", Why: "connection refused",
		Was: capture.Slow, Since: began.Add(-10 * time.Second), Pods: &pods, Containers: &containers,
	}
}

func TestAChangeIsALineBetweenTheCalls(t *testing.T) {
	var text, lines bytes.Buffer
	p := calls.Printer{Out: &text}
	p.Change(gone())
	p.Change(&capture.Change{Time: gone().Time, What: capture.PluginDown, Plugin: "koordlet", Why: "evil \x1b[31m"})
	p.Change(&capture.Change{Time: gone().Time, What: capture.PluginReady, Plugin: "koordlet", Was: capture.PluginDown, Since: gone().Since})
	p.Change(&capture.Change{Time: gone().Time, What: capture.Removed, Plugin: "koordlet", Why: "its file is gone", Was: capture.PluginReady, Since: gone().Since})
	p.Change(&capture.Change{Time: gone().Time, What: capture.Reloaded})
	assert.Equal(t, "22:26:30.000  -- beta.io is gone: connection refused (slow for 10s before, 1 pod, 12 containers)\n"+
		"22:26:30.000  -- plugin koordlet is down: evil  [31m\n"+
		"22:26:30.000  -- plugin koordlet is ready (down for 10s before)\n"+
		"22:26:30.000  -- plugin koordlet is removed: its file is gone (ready for 10s before)\n"+
		"22:26:30.000  -- criproxy has a new configuration\n", text.String())
	p = calls.Printer{Out: &lines, JSON: true}
	p.Change(gone())
	assert.Contains(t, lines.String(), `{"change":{"time":"2026-11-24T22:26:30`)
	assert.Contains(t, lines.String(), `"what":"gone","backend":"beta.io","why":"connection refused","was":"slow"`)
}

func TestAFilterForCallsHidesChanges(t *testing.T) {
	for _, shows := range []calls.Filter{{}, {Own: true}, {Backend: "beta*"}} {
		assert.True(t, shows.MatchChange(gone()), "%+v", shows)
	}
	for _, hides := range []calls.Filter{{Backend: "alpha"}, {Method: "Run*"}, {Status: "!OK"}, {Pod: "p"}, {Slower: 1}} {
		assert.False(t, hides.MatchChange(gone()), "%+v", hides)
	}
	assert.True(t, (&calls.Filter{Pod: "p"}).MatchChange(&capture.Change{What: capture.Serving, Missing: gone().Time}), "calls of the pod may be missing")
	reload := &capture.Change{What: capture.Reloaded}
	assert.True(t, (&calls.Filter{Backend: "beta*"}).MatchChange(reload), "it concerns all backends")
	restart := &capture.Change{What: capture.Restarted, Backend: "beta.io"}
	assert.True(t, (&calls.Filter{Backend: "beta*"}).MatchChange(restart))
	assert.False(t, (&calls.Filter{Backend: "alpha"}).MatchChange(restart))
}

func TestAChangeBelongsToNoCall(t *testing.T) {
	a := calls.NewAssembler(nil, nil)
	c, what := a.Add(&capture.Event{Kind: capture.Changed, Change: gone()})
	assert.Nil(t, c)
	assert.Equal(t, calls.Changed, what)
	assert.Empty(t, a.UnderWay())
}
