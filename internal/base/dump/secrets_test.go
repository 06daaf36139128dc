package dump_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/base/dump"
)

func TestAStarInAKeyStandsForAnything(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"token", "token", true},
		{"token", "tokens", false},
		{"token", "", false},
		{"*", "", true},
		{"*", "anything", true},
		{"*token", "a.token", true},
		{"*token", "a.tokens", false},
		{"token*", "tokens", true},
		{"*token*", "a.tokens", true},
		{"*token*", "a.toke", false},
		{"a*a", "a", false}, // one letter is not both
		{"a*a", "aa", true},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "a-c-b", false},
		{"**b", "ab", true},
	} {
		assert.Equal(t, c.want, dump.MatchesKey([]string{"other", c.pattern}, []byte(c.key)), "%s in %s", c.key, c.pattern)
	}
	assert.False(t, dump.MatchesKey(nil, []byte("token")))
}
