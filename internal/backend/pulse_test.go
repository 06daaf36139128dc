package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// While this process is stopped, or its machine sleeps, no answer can come.
func TestAPauseOfThisProcessIsNoSilence(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		var p pulse
		p.underWay.Add(1)
		assert.Zero(t, p.beat(2*time.Second))
		time.Sleep(time.Second)
		assert.Equal(t, time.Second, p.beat(2*time.Second))
		time.Sleep(time.Hour)
		assert.Equal(t, 3*time.Second, p.beat(2*time.Second))
		p.answers.Add(1)
		assert.Zero(t, p.beat(2*time.Second))
	})
}
