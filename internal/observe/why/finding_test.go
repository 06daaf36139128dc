package why

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Headlines were longer than a screen is wide, and had ids of 64 digits (issue 42).
func TestAHeadlineIsShort(t *testing.T) {
	id, word := strings.Repeat("0a", 32), strings.Repeat("x", 100)
	for text, want := range map[string]string{
		"primary is gone":                      "primary is gone",
		"shop__" + id + " is gone":             "shop__0a0a0a0a0a0a is gone",
		"write /x/" + id + "/data: full":       "write /x/0a0a0a0a0a0a…/data: full",
		"wanted to free 9223372036854775807":   "wanted to free 9223372036854775807",
		"gone; " + word + "; " + word:          "gone; " + word,
		"no such image: " + word + ": " + word: "no such image: " + word[:62] + " ... " + word[:77],
		word + word:                            word[:77] + " ... " + word[:77],
	} {
		head := Headline(text)
		assert.Equal(t, want, head)
		assert.LessOrEqual(t, len(head), 160)
	}
	assert.Equal(t, "failed: ... space left", Short("failed: "+word+": no space left", 30))
}
