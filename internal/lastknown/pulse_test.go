package lastknown

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A process that was stopped, or whose machine slept, heard nothing either.
func TestTimeThatWeStoodStillIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
