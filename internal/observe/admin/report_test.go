package admin

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/plugins"
)

// status began with "ready" while calls were refused because of a plugin, and while all calls to the primary came back.
func TestWrongIsAllThatTheDotOfThePageShows(t *testing.T) {
	r := Report{Ready: true, Backends: []Backend{{Name: "primary", State: "up"}, {Name: "kata.io", State: "gone"}}, Config: Config{Error: "a mistake"}}
	r.Hooks = &plugins.State{Plugins: []plugins.PluginState{{Name: "a.json", State: "ready"}, {Name: "b.json", State: "down"}, {Name: "c.json", State: "ready", Error: "a mistake"}}}
	assert.Equal(t, "kata.io is gone, the configuration was refused, plugin b.json is down, the file of plugin c.json was refused", r.Wrong())
	r.Backends[1].State, r.Backends[0].Error = "up", "is connected, but Version fails: it came back"
	assert.Contains(t, r.Wrong(), "calls to primary fail, the configuration was refused")
	assert.Empty(t, r.Worse(&Report{}), "status -exit-code is about the conditions of runtimes")
}

func TestWorseIsWhatWasBetterBefore(t *testing.T) {
	report := func(primary, kata string) *Report {
		return &Report{Ready: true, Backends: []Backend{{Name: "primary", State: primary}, {Name: "kata.io", State: kata}}}
	}
	for _, test := range []struct {
		before, now *Report
		want        string
	}{
		{report("up", "up"), report("up", "up"), ""},
		{report("up", "up"), report("up", "gone"), "kata.io is gone"},
		{report("up", "up"), report("up", "connecting"), "kata.io is connecting"},
		{report("up", "slow"), report("up", "slow"), ""},
		{report("up", "slow"), report("up", "gone"), "kata.io is gone"},
		{report("up", "gone"), report("up", "slow"), ""},
		{report("up", "gone"), report("slow", "gone"), "primary is slow"},
		{&Report{}, report("up", "gone"), "kata.io is gone"}, // a runtime that is new
	} {
		assert.Equal(t, test.want, test.now.Worse(test.before), "%+v, %+v", test.before.Backends, test.now.Backends)
	}
	now := report("up", "gone")
	now.Worse(now)
	assert.Equal(t, "kata.io is gone", now.Trouble(), "a report stays as it is")
}
