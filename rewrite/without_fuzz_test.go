package rewrite_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/rewrite"
)

// FuzzWithout checks that a message without some of its fields keeps all others as they were, and
// that Without refuses what protobuf refuses.
func FuzzWithout(f *testing.F) {
	f.Add([]byte("\x0a\x01a\x12\x00\x18\x05"), uint32(2))
	f.Add([]byte("\x0b\x12\x01x\x0c\x0d\x01\x02\x03\x04"), uint32(1))
	f.Add([]byte("\xfa\xff\xff\xff\x0f\x01x\x0b\x13\x0c"), uint32(536870911))
	f.Fuzz(func(t *testing.T, src []byte, drop uint32) {
		var want []byte
		valid := true
		for rest := src; len(rest) > 0; {
			num, _, n := protowire.ConsumeField(rest)
			if n < 0 {
				valid = false
				break
			}
			if num != protowire.Number(drop) {
				want = append(want, rest[:n]...)
			}
			rest = rest[n:]
		}
		got, err := rewrite.Without([]byte("before"), src, func(n protowire.Number) bool { return n == protowire.Number(drop) })
		if !valid {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, "before"+string(want), string(got))
	})
}
