package capture

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAChangeSaysThatCallsMayBeMissing(t *testing.T) {
	now := time.Unix(1_800_000_000, 0).UTC()
	c := Change{Time: now, What: Serving, Why: "beta is now at /run/b.sock, before at /run/a.sock", Missing: now.Add(-4200 * time.Millisecond)}
	assert.Equal(t, "criproxy serves: beta is now at /run/b.sock, before at /run/a.sock (the process before crashed or was killed: calls of the 4.2s before this may be missing)", c.String())
	assert.Equal(t, &c, decodeChange(c.encode()))
	assert.NotContains(t, string((&Change{Time: now, What: Serving}).encode()), "missing")
}

// An outage from .745 to .796 lasted 100ms, and one from .679 to .699 lasted 0s.
func TestADurationFitsTheTimesBesideIt(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"13:30:39.745", "13:30:39.796", "51ms"},
		{"13:30:39.679", "13:30:39.699", "20ms"},
		{"13:30:39.7459", "13:30:39.7961", "51ms"}, // 50.2ms, but the times are shown as above
		{"13:30:39.7451", "13:30:39.7459", "0s"},
		{"13:30:03.993", "13:30:11.205", "7.2s"},
		{"13:30:11.205", "13:31:02.000", "51s"},
		{"13:30:39.796", "13:30:39.745", "0s"}, // the clock was set back
	} {
		at := func(clock string) time.Time {
			at, err := time.Parse("15:04:05", clock)
			assert.NoError(t, err)
			return at
		}
		assert.Equal(t, c.want, Lasting(at(c.from), at(c.to)), "%s to %s", c.from, c.to)
	}
}

// After a crash, a runtime that had been up all the time was said to be up a second time, and nothing explained that.
func TestAConditionAfterAStartSaysThatTheOneBeforeIsNotKnown(t *testing.T) {
	up := Change{What: Up, Backend: "kata.io", Pods: new(1)}
	assert.Equal(t, "kata.io is up (its condition before is not known, 1 pod)", up.String())
	up.Was, up.Since, up.Time = Gone, time.Unix(1, 0), time.Unix(3, 0)
	assert.Equal(t, "kata.io is up (gone for 2s before, 1 pod)", up.String())
}

func TestARestartOfARuntimeIsNoCondition(t *testing.T) {
	for what, says := range map[string]string{Gone: "kata.io is gone: now", Removed: "kata.io is no longer in the configuration: now", Restarted: "kata.io was restarted: now", Replaced: "kata.io was replaced: now"} {
		c := Change{What: what, Backend: "kata.io", Why: "now"}
		assert.Equal(t, says, c.String())
		assert.Equal(t, what == Gone || what == Removed, c.IsCondition())
		assert.True(t, c.Known())
	}
	assert.False(t, (&Change{What: Removed, Plugin: "koordlet"}).IsCondition(), "it is that of a plugin")
}

// status said "1 calls refused": issue 43.
func TestOneThingIsSingular(t *testing.T) {
	assert.Equal(t, "1 pod", Count(1, "pod"))
	assert.Equal(t, "0 pods", Count(0, "pod"))
	assert.Equal(t, "1 retry", Count(1, "retry"))
	assert.Equal(t, "2 retries", Count(2, "retry"))
}
