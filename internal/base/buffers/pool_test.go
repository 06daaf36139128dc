package buffers_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/buffers"
)

func TestBufferIsAtMostAQuarterTooLong(t *testing.T) {
	for n := 257; n <= 1<<24; n += 1 + n/97 {
		b := buffers.Pool.Get(n)
		assert.Len(t, *b, n)
		assert.LessOrEqual(t, cap(*b), n+n/4+1)
		buffers.Pool.Put(b)
	}
	for _, n := range []int{0, 1, 256, 257, 1 << 20, 1<<20 + 1, 1 << 24, 1<<24 + 1} {
		assert.Len(t, *buffers.Pool.Get(n), n)
	}
}

func TestReturnedBufferIsUsedAgain(t *testing.T) {
	for range 100 { // under the race detector, sync.Pool drops some
		b := buffers.Pool.Get(300_000)
		buffers.Pool.Put(b)
		if again := buffers.Pool.Get(299_000); again == b {
			return
		}
	}
	assert.Fail(t, "each buffer is a new one")
}

func TestFillKeepsWhatWasWrittenHoweverLong(t *testing.T) {
	for _, written := range []int{0, 10, 5000, 50_000} {
		text := strings.Repeat("x", written)
		bufs, err := buffers.Fill(5000, func(dst []byte) ([]byte, error) { return append(dst, text...), nil })
		require.NoError(t, err)
		assert.Equal(t, text, string(bufs.Materialize()))
		bufs.Free()
	}
	_, err := buffers.Fill(5000, func(dst []byte) ([]byte, error) { return dst, errors.New("no") })
	assert.EqualError(t, err, "no")
}
