package backend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// alone returns a Backend that passes everything.
func (n *near) alone(t *testing.T, before backend.State) (*watched, *backend.Link) {
	t.Helper()
	w := &watched{Backend: backend.Open("alone", backend.File{}), states: make(chan backend.State, 1000)}
	c, err := w.Stage(backend.Config{Name: "alone", Next: n, Pass: true, Before: before, Watch: func(s backend.State) { w.states <- s }})
	require.NoError(t, err)
	c.Commit()
	w.run(t)
	return w, c
}

// freezes makes the backend hang until thaw: then it answers what was asked meanwhile.
func (n *near) freezes() (thaw func()) {
	thawed := make(chan struct{})
	n.when(func(ctx context.Context, _ string) error {
		select {
		case <-thawed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return func() { close(thawed) }
}

// put makes a call that its client gives up after a time.
func put(t *testing.T, w *watched, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return w.Call(ctx, &codec.Call{Method: muxtest.Method("Put"), Request: &codec.Frame{}})
}

// next returns the next state, which must be there.
func (w *watched) next(t *testing.T) backend.State {
	t.Helper()
	time.Sleep(time.Millisecond) // Run calls Watch
	select {
	case s := <-w.states:
		return s
	default:
		require.Fail(t, "the condition has not changed")
		return backend.State{}
	}
}

// A runtime that was alone and froze was up for ever (issue 43).
func TestABackendWithoutACacheThatHangsIsGone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w, link := n.alone(t, backend.State{})
		link.Reached(nil)
		require.Equal(t, backend.Up, w.next(t).Condition)
		thaw := n.freezes()
		began := time.Now()
		late := make(chan error, 1)
		go func() { late <- put(t, w, time.Hour) }()
		for range 20 { // clients that ask again and again
			assert.Error(t, put(t, w, 2*time.Second))
			time.Sleep(time.Second)
		}
		gone := w.next(t)
		assert.Equal(t, backend.Gone, gone.Condition)
		assert.True(t, gone.Hangs())
		assert.InDelta(t, backend.DefaultSilence, gone.Since.Sub(began), float64(2*time.Second))

		link.Reached(errors.New("connection reset")) // a new connection is accepted, and proves nothing
		assert.Equal(t, backend.Gone, w.next(t).Condition)
		link.Reached(nil)
		time.Sleep(time.Minute)
		assert.Empty(t, w.states)

		thaw()
		time.Sleep(time.Second)
		assert.Equal(t, backend.Up, w.next(t).Condition)
		assert.NoError(t, put(t, w, time.Second))
		time.Sleep(time.Minute)
		assert.Empty(t, w.states)
		select {
		case err := <-late:
			assert.NoError(t, err, "a call goes on over the outage, as it does without criproxy")
		default:
			assert.Fail(t, "the call is still under way")
		}
	}, "a")
}

// With a mistake in what silence is for such a backend, it was gone as soon as it was taken away.
func TestABackendWithoutACacheThatIsTakenAwayIsNotGone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w, link := n.alone(t, backend.State{})
		link.Reached(nil)
		w.next(t)
		link.Retire()
		time.Sleep(time.Minute)
		assert.Equal(t, backend.Up, w.State().Condition)
	}, "a")
}

// What takes long by its nature says nothing about a backend that answers others.
func TestALongCallToABackendWithoutACacheChangesNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w, link := n.alone(t, backend.State{})
		link.Reached(nil)
		w.next(t)
		n.when(only("Put", taking(time.Hour)))
		assert.NoError(t, put(t, w, 2*time.Hour))
		assert.Empty(t, w.states)
	}, "a")
}

// Who takes over while the backend hangs does not take a connection for an answer.
func TestAHangOutlastsItsProcess(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		thaw := n.freezes()
		w, link := n.alone(t, backend.State{Condition: backend.Gone, Since: time.Now()})
		link.Reached(nil)
		time.Sleep(time.Minute)
		assert.Empty(t, w.states)
		thaw()
		time.Sleep(time.Second)
		assert.Equal(t, backend.Up, w.next(t).Condition)
	}, "a")
}

// It has been one of several, and is one again: what it was meanwhile, nobody knows.
func TestABackendThatWasAloneRemembersNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.reload(t, w, func(c *settings) { c.Pass = true })
		n.library.with(func() { n.library.books["b"] = "" })
		require.Equal(t, backend.Up, w.State().Condition)
		n.library.with(func() { n.fault = hang })
		n.reload(t, w, nil)
		_, err := w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err))
	}, "a")
}
