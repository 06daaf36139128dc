package transport

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func TestACutMessageHasNoHalfCharacter(t *testing.T) {
	for _, text := range []string{"plain text", "a€b𝄞cü%d", "€€€€", "%41%zz%"} {
		for _, m := range []string{text, EncodeMessage(text), strings.ToLower(EncodeMessage(text))} {
			whole := DecodeMessage(m)
			for n := range len(m) {
				cut := cutMessage(m, n)
				assert.LessOrEqual(t, len(cut), n)
				assert.True(t, utf8.ValidString(DecodeMessage(cut)), "%q at %d: %q", m, n, cut)
				if m != text {
					assert.True(t, strings.HasPrefix(whole, DecodeMessage(cut)), "%q at %d: %q", m, n, cut)
				}
			}
		}
	}
}
