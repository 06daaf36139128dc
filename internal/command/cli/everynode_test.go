package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheNameOfANodeDoesNotReachTheTerminalRaw(t *testing.T) {
	var out bytes.Buffer
	clockOff(&out, "node\x1b[2J-1", time.Hour)
	assert.Equal(t, "criproxy: node [2J-1: its clock is 1h0m0s ahead of this machine's; times are shown by this machine's clock\n", out.String())
}
