package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// watcher runs a Watcher of a backend, whose states come from the channel.
func (n *near) watcher(t *testing.T, before memory.State) (*memory.Watcher, chan memory.State) {
	t.Helper()
	states := make(chan memory.State, 1000)
	w := memory.NewWatcher(codec.CallerOf(n), before)
	w.Watch = func(s memory.State) { states <- s }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return w, states
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
func put(t *testing.T, w *memory.Watcher, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return w.Call(ctx, &codec.Call{Method: muxtest.Method("Put"), Request: &codec.Frame{}})
}

// next returns the next state, which must be there.
func next(t *testing.T, states chan memory.State) memory.State {
	t.Helper()
	select {
	case s := <-states:
		return s
	default:
		require.Fail(t, "the condition has not changed")
		return memory.State{}
	}
}

// A runtime that was alone and froze was up for ever (issue 43).
func TestABackendWithoutMemoryThatHangsIsGone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w, states := n.watcher(t, memory.State{})
		w.Reached(nil)
		require.Equal(t, memory.Up, next(t, states).Condition)
		thaw := n.freezes()
		began := time.Now()
		late := make(chan error, 1)
		go func() { late <- put(t, w, time.Hour) }()
		for range 20 { // clients that ask again and again
			assert.Error(t, put(t, w, 2*time.Second))
			time.Sleep(time.Second)
		}
		gone := next(t, states)
		assert.Equal(t, memory.Gone, gone.Condition)
		assert.True(t, gone.Hangs())
		assert.InDelta(t, memory.DefaultSilence, gone.Since.Sub(began), float64(2*time.Second))

		w.Reached(errors.New("connection reset")) // a new connection is accepted, and proves nothing
		assert.Equal(t, memory.Gone, next(t, states).Condition)
		w.Reached(nil)
		time.Sleep(time.Minute)
		assert.Empty(t, states)

		thaw()
		time.Sleep(time.Second)
		assert.Equal(t, memory.Up, next(t, states).Condition)
		assert.NoError(t, put(t, w, time.Second))
		time.Sleep(time.Minute)
		assert.Empty(t, states)
		select {
		case err := <-late:
			assert.NoError(t, err, "a call goes on over the outage, as it does without criproxy")
		default:
			assert.Fail(t, "the call is still under way")
		}
	}, "a")
}

// What takes long by its nature says nothing about a backend that answers others.
func TestALongCallToABackendWithoutMemoryChangesNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w, states := n.watcher(t, memory.State{})
		w.Reached(nil)
		next(t, states)
		n.when(only("Put", taking(time.Hour)))
		assert.NoError(t, put(t, w, 2*time.Hour))
		assert.Empty(t, states)
	}, "a")
}

// Who takes over while the backend hangs does not take a connection for an answer.
func TestAHangOutlastsItsWatcher(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		thaw := n.freezes()
		w, states := n.watcher(t, memory.State{Condition: memory.Gone, Since: time.Now()})
		w.Reached(nil)
		time.Sleep(time.Minute)
		assert.Empty(t, states)
		thaw()
		time.Sleep(time.Second)
		assert.Equal(t, memory.Up, next(t, states).Condition)
	}, "a")
}
