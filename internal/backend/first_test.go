package backend_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// On a busy node it also takes a while until memory has all statuses.
func TestTheFirstListOfAClientIsRemembered(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.when(only("Get", hang)) // statuses are slow
		w := n.watch(t, nil)
		got, err := w.list(t, "")
		require.NoError(t, err)
		require.Equal(t, `books {id: "a1"} books {id: "a2"}`, got, "the list that kubelet gets")
		n.goes(t, w)
		got, err = w.list(t, "")
		require.NoError(t, err)
		assert.Equal(t, `books {id: "a1"} books {id: "a2"}`, got, "an empty list kills pods")
	}, "a1", "a2")
}

func TestAListThatDidNotFitIsNotEmptyAfterARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "beta.io.known")
	l := newLibrary(t)
	for i := range 100 {
		l.books[fmt.Sprint("b", i)] = fmt.Sprintf("title: %q", strings.Repeat("x", 100))
	}
	cfg := func(c *settings) {
		c.MaxBytes, c.Backend = 5000, backend.Open("beta.io", backend.File{Path: file})
	}
	w := watch(t, l, cfg)
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 10*time.Second, 10*time.Millisecond)
	l.stop()
	w.until(t, backend.Gone)
	w.stop()
	w = watch(t, l, cfg)
	got, err := w.list(t, "")
	assert.Equal(t, codes.Unavailable, status.Code(err), "nor after a restart; got %q", got)
}

// containerd answers Unimplemented if its CRI plugin did not load.
func TestABackendWithoutTheServiceIsDown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "beta.io.known")
	withFile := func(c *settings) { c.Backend = backend.Open("beta.io", backend.File{Path: file}) }
	l := newLibrary(t, "a1")
	w := watch(t, l, withFile)
	settled(t, w, l)
	l.stop()
	w.until(t, backend.Gone)
	l.with(func() {
		l.fault = func(context.Context, string) error {
			return status.Error(codes.Unimplemented, "unknown service library.v1.Library")
		}
	})
	l.start(t)    // as containerd with a CRI plugin that does not load
	for range 2 { // and after a restart of ours
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Equal(t, `books {id: "a1"}`, got)
		assert.NotEqual(t, backend.Up, w.State().Condition)
		w.stop()
		w = watch(t, l, withFile)
	}
}

func TestAStreamThatWasCancelledIsNotKept(t *testing.T) {
	type key struct{}
	l := newLibrary(t, "a1")
	w := watch(t, l, patient)
	settled(t, w, l)
	const n = 20
	gone := make(chan struct{}, n)
	for range n {
		func() {
			val := &struct{ b [1 << 16]byte }{}
			runtime.AddCleanup(val, func(struct{}) { gone <- struct{}{} }, struct{}{})
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, val))
			cs, err := w.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, muxtest.Method("Chat"))
			require.NoError(t, err)
			require.NoError(t, cs.SendMsg(&codec.Frame{}))
			cancel() // suffices by the documentation of grpc.ClientConnInterface
		}()
	}
	assert.Eventually(t, func() bool {
		runtime.GC()
		return len(gone) == n
	}, 10*time.Second, 50*time.Millisecond, "what its context holds is kept")
	assert.Equal(t, backend.Up, w.State().Condition)
}

// passed is a context whose deadline passes by the clock before its timer fires, as on a busy machine.
type passed struct {
	context.Context
	deadline time.Time
}

func (p passed) Deadline() (time.Time, bool) { return p.deadline, true }

func TestADeadlineThatPassesWithoutItsTimerIsAnError(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.down = true
		w := n.watch(t, func(cfg *settings) { cfg.Required, cfg.RequiredWait = true, 10*time.Second })
		ctx := passed{t.Context(), time.Now().Add(10 * time.Second)}
		err := w.Invoke(ctx, muxtest.Method("List"), &codec.Frame{}, &codec.Frame{})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), err)
	})
}
