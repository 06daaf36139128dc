package telemetry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// counter is a Finder that finds as many errors as there are calls.
type counter struct{ calls, counted int }

func (c *counter) Follow(*calls.Assembler) {}
func (c *counter) Take(_ *capture.Event, _ *calls.Call, what calls.What) {
	if what == calls.Done {
		c.calls++
	}
}
func (c *counter) Forget(time.Time) {}
func (c *counter) Count(time.Time) map[[2]string]int {
	c.counted++
	return map[[2]string]int{{"all", "error"}: c.calls}
}

func TestFindingsAreCountedWhenSomebodyAsks(t *testing.T) {
	r := &Recording{cfg: &config.Config{}, rec: capture.NewRecorder(capture.Config{}), Schema: codec.NewSchema()}
	finder := &counter{}
	w := r.NewWrong(finder, nil)
	call := func() {
		_, leg := r.rec.Begin(t.Context(), capture.LegInfo{Method: "/a.B/C", Client: true})
		leg.End(nil, nil)
	}
	call()
	call()
	assert.Zero(t, finder.calls, "nobody has asked")
	assert.Equal(t, 2, w.Count()[[2]string{"all", "error"}])
	call()
	assert.Equal(t, 2, w.Count()[[2]string{"all", "error"}], "it was asked a moment ago")
	assert.Equal(t, 1, finder.counted)
	w.counted = w.counted.Add(-wrongEvery)
	assert.Equal(t, 3, w.Count()[[2]string{"all", "error"}])
	require.Nil(t, r.NewWrong(nil, nil), "nobody looks")
	require.Nil(t, (&Recording{}).NewWrong(finder, nil), "nothing is recorded")
}
