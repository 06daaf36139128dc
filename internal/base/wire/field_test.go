package wire_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/wire"
)

func TestMapEntryIsReadInAnyOrder(t *testing.T) {
	for entry, want := range map[string]struct {
		key, value string
		ok         bool
	}{
		"":                               {"", "", true},
		"\x0a\x01k\x12\x01v":             {"k", "v", true},
		"\x12\x01v\x0a\x01k":             {"k", "v", true},
		"\x0a\x01k\x12\x01v\x12\x02vv":   {"k", "vv", true},
		"\x1a\x01x\x0a\x01k":             {"k", "", true},
		"\x0a\x01k\x10\x07":              {"k", "", true},
		"\x0a\x01k\x12\x05v":             {"k", "", false},
		"\x0a\x01k\x12\x01v\xff\xff\xff": {"k", "v", false},
	} {
		key, value, ok := wire.MapEntry([]byte(entry))
		assert.Equal(t, want.key, string(key), "%q", entry)
		assert.Equal(t, want.value, string(value), "%q", entry)
		assert.Equal(t, want.ok, ok, "%q", entry)
	}
}

func TestFieldsAreYieldedInOrder(t *testing.T) {
	message := []byte("\x0a\x01k\x10\x07\x1b\x08\x01\x1c\x25\x02\x00\x00\x00\x29\x03\x00\x00\x00\x00\x00\x00\x00")
	var got []string
	for f, err := range wire.Fields(message) {
		require.NoError(t, err)
		got = append(got, fmt.Sprintf("%d:%d %q %d", f.Number, f.Type, f.Bytes(), f.Uint()))
		assert.Equal(t, string(f.Raw), string(f.Tag())+string(f.Value))
	}
	assert.Equal(t, []string{`1:2 "k" 0`, `2:0 "" 7`, `3:3 "\b\x01" 0`, `4:5 "" 2`, `5:1 "" 3`}, got)
}

func TestMalformedFieldEndsTheMessage(t *testing.T) {
	for message, want := range map[string]wire.Field{
		"\x08\x01\x12\x05v": {Raw: []byte("\x12\x05v")},
		"\x08\x01\xff":      {Raw: []byte("\xff")},
	} {
		n := 0
		for f, err := range wire.Fields([]byte(message)) {
			if n++; n == 2 {
				assert.Error(t, err)
				assert.Equal(t, want, f)
			}
		}
		assert.Equal(t, 2, n, "%q", message)
	}
}

func TestFieldsAllocatesNothing(t *testing.T) {
	message := bytes.Repeat([]byte("\x0a\x01k\x10\x07"), 100)
	sum := 0
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for f, err := range wire.Fields(message) {
			if err != nil {
				return
			}
			sum += len(f.Bytes()) + int(f.Uint())
		}
	}))
	assert.Equal(t, 101*800, sum)
}
