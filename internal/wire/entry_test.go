package wire_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/wire"
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
