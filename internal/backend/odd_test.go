package backend_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/backend"
)

// oddly answers the first n calls of a method with an error.
func oddly(n int, method string, code codes.Code) func(context.Context, string) error {
	var asked atomic.Int64
	return only(method, func(context.Context, string) error {
		if asked.Add(1) <= int64(n) {
			return status.Error(code, "no running task found")
		}
		return nil
	})
}

// One error in ListPodSandbox made a healthy runtime slow for ten seconds and more, with an alert (issue 40).
func TestOneErrorOfAListIsTheTroubleOfItsCall(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if code == codes.Unimplemented || code == codes.Canceled || code == codes.DeadlineExceeded {
			continue // the first is a list that the backend has lost; the others are rather our own
		}
		t.Run(code.String(), func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, nil)
				w.until(t, backend.Up)
				for range 5 {
					n.when(oddly(1, "List", code))
					var header metadata.MD
					got, err := w.list(t, "", grpc.Header(&header))
					require.NoError(t, err)
					assert.Equal(t, `books {id: "a"}`, got)
					assert.NotEmpty(t, header[backend.HeaderKey], "it is from the cache")
					header = nil
					_, err = w.list(t, "", grpc.Header(&header))
					require.NoError(t, err)
					assert.Empty(t, header[backend.HeaderKey], "the next one is not")
					time.Sleep(5 * time.Second)
				}
				assert.Empty(t, w.states, "its condition is what it was")
			}, "a")
		})
	}
}

// The error may come to the list for which nobody waits.
func TestOneErrorInTheBackgroundChangesNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		w.until(t, backend.Up)
		for range 20 {
			n.when(oddly(1, "List", codes.Internal))
			time.Sleep(2 * time.Second)
		}
		assert.Empty(t, w.states)
	}, "a")
}

func TestAListThatGoesOnFailingIsNoticedAtOnce(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Interval, c.Spec.Lists[0].Every = time.Minute, time.Minute })
		w.until(t, backend.Up)
		n.when(oddly(1000, "List", codes.Internal))
		began := time.Now()
		_, err := w.list(t, "")
		require.NoError(t, err)
		assert.ErrorContains(t, w.until(t, backend.Slow).Err, "no running task found")
		assert.Less(t, time.Since(began), time.Second, "although nobody asks again")
	}, "a")
}

// Two calls that are under way at once have the same trouble.
func TestErrorsAtTheSameTimeCountAsOne(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Interval, c.Spec.Lists[0].Every = time.Minute, time.Minute })
		w.until(t, backend.Up)
		broken := oddly(5, "List", codes.Internal)
		n.when(func(ctx context.Context, method string) error {
			time.Sleep(100 * time.Millisecond)
			return broken(ctx, method)
		})
		done := make(chan error, 5)
		for range cap(done) {
			go func() { _, err := w.list(t, ""); done <- err }()
		}
		for range cap(done) {
			require.NoError(t, <-done)
		}
		time.Sleep(time.Minute)
		assert.Empty(t, w.states)
	}, "a")
}

func TestOneErrorDoesNotKeepABackendFromComingBack(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		w.until(t, backend.Up)
		n.goes(t, w)
		n.when(oddly(1, "List", codes.Unknown))
		n.library.with(func() { n.down = false })
		for len(w.states) == 0 || (<-w.states).Condition == backend.Gone {
			time.Sleep(time.Second)
		}
		assert.Equal(t, backend.Up, w.State().Condition)
		assert.Empty(t, w.states)
	}, "a")
}
