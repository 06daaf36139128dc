package host

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// t.Context has no deadline: a test that waited with it for what never came took its package's 40 minutes (issue 44).
func TestNothingWaitsWithoutABound(t *testing.T) {
	never := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), nil, never)
	require.NoError(t, err)
	defer unlock()
	for name, wait := range map[string]func(ctx context.Context, late func() bool) error{
		"Poll": func(ctx context.Context, late func() bool) error { return Poll(ctx, "nothing", late) },
		"Await": func(ctx context.Context, late func() bool) error {
			return Await(ctx, "nothing", func() error {
				if late() {
					return nil
				}
				return errors.New("not yet")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnSimulatedClock(t, func(t *testing.T) {
				began := time.Now()
				late := func() bool { return time.Since(began) > time.Hour }
				require.ErrorIs(t, wait(t.Context(), late), context.DeadlineExceeded)
				assert.Equal(t, time.Minute, time.Since(began))
			})
		})
	}
	t.Run("Lock", func(t *testing.T) {
		testkit.OnSimulatedClock(t, func(t *testing.T) {
			began := time.Now()
			outer, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Hour, cancel)
			_, err := Lock(outer, func() {}, never)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, never)
			assert.Equal(t, 30*time.Minute, time.Since(began))
		})
	})
}

func TestACommandEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := Command(ctx, "sleep", "60")
	require.NoError(t, cmd.Start())
	cancel()
	assert.Error(t, cmd.Wait())
}
