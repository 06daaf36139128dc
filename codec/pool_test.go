package codec

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestABufferHasItsLengthAndAtMostTwiceTheMemory(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 4095, 4096, 4097, 100_000, 1 << 24, 1<<24 + 1, 20 << 20} {
		for range 3 { // fresh ones, and some that come back
			b := Pool.Get(n)
			assert.Len(t, *b, n)
			assert.LessOrEqual(t, cap(*b), max(2*n, 256), n)
			Pool.Put(b)
		}
	}
}

func TestABufferOfSomebodyElseIsOnlyTakenIfItHasTheRightSize(t *testing.T) {
	p := &pool{}
	for _, size := range []int{0, 100, 5000, 1<<24 + 1} {
		b := make([]byte, 0, size)
		p.Put(&b)
	}
	for i := range p.sizes {
		assert.Nil(t, p.sizes[i].Get(), "class %d", i)
	}
}
