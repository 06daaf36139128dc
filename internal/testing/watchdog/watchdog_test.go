package watchdog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheLimitComesBeforeTheTimeout(t *testing.T) {
	for _, c := range []struct{ limit, timeout, want time.Duration }{
		{10 * time.Minute, 15 * time.Minute, 10 * time.Minute},
		{14 * time.Minute, 15 * time.Minute, 14 * time.Minute},
		{20 * time.Minute, 15 * time.Minute, 14 * time.Minute},
		{10 * time.Minute, 3 * time.Minute, 2 * time.Minute},
		{10 * time.Minute, time.Hour, 59 * time.Minute}, // a long run, asked for
		{10 * time.Minute, 0, 0},                        // as in a debugger
	} {
		assert.Equal(t, c.want, limitOf(c.limit, c.timeout), "limit %s, -timeout %s", c.limit, c.timeout)
	}
}
