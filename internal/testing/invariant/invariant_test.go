package invariant

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBrokenInvariantsAreErrors(t *testing.T) {
	assert.NoError(t, Same([]string{"a", "b"}, []string{"b", "a"}))
	assert.Error(t, Same([]string{"a", "b"}, []string{"a"}), "less is shown")
	assert.Error(t, Same([]string{"a"}, []string{"a", "a"}), "an item is shown twice")
	assert.Error(t, Same([]string{"container a RUNNING"}, []string{"container a EXITED"}), "another state is shown")
	assert.NoError(t, OnceEach(map[string]int{"stop a": 1, "stop b": 1}))
	assert.Error(t, OnceEach(map[string]int{"stop a": 2}))
	assert.NoError(t, InTime(90*time.Millisecond, 0))
	assert.Error(t, InTime(110*time.Millisecond, 0))
	assert.NoError(t, InTime(110*time.Millisecond, 20*time.Millisecond))
	before, more := Level{100, 10, 1 << 20, 30 << 20}, Level{15, 5, 8 << 20, 96 << 20}
	assert.NoError(t, before.Leaked(Level{105, 12, 2 << 20, 40 << 20}, more))
	for _, after := range []Level{{200, 10, 1 << 20, 0}, {100, 20, 1 << 20, 0}, {100, 10, 10 << 20, 0}, {100, 10, 1 << 20, 130 << 20}} {
		assert.Error(t, before.Leaked(after, more))
	}
}
