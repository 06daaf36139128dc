package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/backend"
)

// After a handover, and as soon as a runtime hung, the status waited three seconds for what the runtime is, which was known.
func TestStatusWaitsForARuntimeThatHangsAsLongAsAList(t *testing.T) {
	inPeace(t, func(t *testing.T, w *world, _ *client, second *runtime) {
		hung := clear()
		hung.name, hung.frozen = "frozen", true
		for _, handsOver := range []bool{false, true} {
			second.turns(hung, second.address())
			if handsOver {
				require.NoError(t, w.now.proxy.HandOver(w.ctx))
			}
			began := time.Now()
			w.now.asks("/status")
			assert.LessOrEqual(t, time.Since(began), backend.DefaultBudget+100*time.Millisecond)
			second.turns(clear(), second.address())
			w.sleep(time.Minute)
		}
	})
}
