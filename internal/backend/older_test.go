package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestATimeInTheFutureCountsAsLongAgo(t *testing.T) {
	assert.True(t, older(time.Now().Add(time.Hour), time.Minute), "the clock was set back")
	assert.True(t, older(time.Now().Add(-time.Hour), time.Minute))
	assert.False(t, older(time.Now(), time.Minute))
}
