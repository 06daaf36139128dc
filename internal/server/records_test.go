package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// What happens while another process takes over, that process tells. If it does not take over, this one tells all of
// it, in order.
func TestASilentProcessTellsOnlyIfItGoesOn(t *testing.T) {
	var r records
	var told []int
	tell := func(n int) { r.do(func() { told = append(told, n) }) }
	tell(1)
	r.freeze()
	tell(2)
	tell(3)
	assert.Equal(t, []int{1}, told)
	r.thaw()
	tell(4)
	assert.Equal(t, []int{1, 2, 3, 4}, told)
	r.freeze()
	for range maxWaiting + 5 {
		tell(5)
	}
	assert.Equal(t, []int{1, 2, 3, 4}, told)
	assert.Len(t, r.waiting, maxWaiting, "a long silence does not fill the memory")
}
