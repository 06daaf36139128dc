package admin

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

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
