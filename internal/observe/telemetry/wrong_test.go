package telemetry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/why"
)

func TestFindingsAreCountedWhenSomebodyAsks(t *testing.T) {
	r := &Recording{cfg: &config.Config{}, rec: capture.NewRecorder(capture.Config{}), Schema: codec.NewSchema()}
	w := r.NewWrong(&why.Look{}, nil)
	gone := func(backend string) {
		r.rec.Change(capture.Change{Time: time.Now(), What: capture.Gone, Backend: backend})
	}
	gone("alpha.io")
	gone("beta.io")
	assert.Nil(t, w.follower, "nobody has asked")
	errors := [2]string{"runtime", "error"}
	assert.Equal(t, 2, w.Count()[errors])
	gone("kata.io")
	assert.Equal(t, 2, w.Count()[errors], "it was asked a moment ago")
	w.counted = w.counted.Add(-wrongEvery)
	assert.Equal(t, 3, w.Count()[errors])
	require.Nil(t, r.NewWrong(nil, nil), "nobody looks")
	require.Nil(t, (&Recording{}).NewWrong(&why.Look{}, nil), "nothing is recorded")
}
