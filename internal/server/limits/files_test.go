package limits

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheSharesOfFileDescriptors(t *testing.T) {
	for _, c := range []struct {
		files       uint64
		others      int
		main, other int
	}{
		{150, 1, 90, 18},
		{1024, 0, 640, 128},
		{1024, 1, 640, 128},
		{1024, 3, 640, 42},
		{65536, 1, 40960, 1024},
		{65536, 20, 40960, 409},
		{math.MaxUint64, 1, 5 << 27, 1024},
		{20, 1, 10, 4},
	} {
		main, other := mostOf(c.files, c.others)
		assert.Equal(t, [2]int{c.main, c.other}, [2]int{main, other}, "of %d with %d other sockets", c.files, c.others)
	}
}
