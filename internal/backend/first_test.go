package backend_test

import (
	"context"
	"fmt"
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

// On a busy node it also takes a while until the cache has all statuses.
func TestTheFirstListOfAClientIsRemembered(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.when(only("Get", hang)) // statuses are slow
		w := n.watch(t, nil)
		w.lists(t, `books {id: "a1"} books {id: "a2"}`, "the list that kubelet gets")
		n.goes(t, w)
		w.lists(t, `books {id: "a1"} books {id: "a2"}`, "an empty list kills pods")
	}, "a1", "a2")
}

func TestAListThatDidNotFitIsNotEmptyAfterARestart(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		file := filepath.Join(t.TempDir(), "beta.io.known")
		for i := range 100 {
			n.library.books[fmt.Sprint("b", i)] = fmt.Sprintf("title: %q", strings.Repeat("x", 100))
		}
		cfg := func(c *settings) {
			c.MaxBytes, c.Backend = 5000, backend.Open("beta.io", backend.File{Path: file})
		}
		w := n.watch(t, cfg)
		require.FileExists(t, file)
		n.goes(t, w)
		w.stop()
		w = n.watch(t, cfg)
		got, err := w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err), "nor after a restart; got %q", got)
	})
}

// containerd answers Unimplemented if its CRI plugin did not load.
func TestABackendWithoutTheServiceIsDown(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		file := filepath.Join(t.TempDir(), "beta.io.known")
		withFile := func(c *settings) { c.Backend = backend.Open("beta.io", backend.File{Path: file}) }
		w := n.watch(t, withFile)
		n.goes(t, w)
		n.when(func(context.Context, string) error {
			return status.Error(codes.Unimplemented, "unknown service library.v1.Library")
		})
		n.library.with(func() { n.down = false }) // as containerd with a CRI plugin that does not load
		for range 2 {                             // and after a restart of ours
			w.lists(t, `books {id: "a1"}`)
			assert.NotEqual(t, backend.Up, w.State().Condition)
			w.stop()
			w = n.watch(t, withFile)
		}
	}, "a1")
}

func TestAStreamThatWasCancelledIsNotKept(t *testing.T) {
	type key struct{}
	n := &near{library: &library{}}
	b := n.config(t, nil).begin(t)
	const streams = 20
	gone := make(chan struct{}, streams)
	for range streams {
		func() {
			val := &struct{ b [1 << 16]byte }{}
			runtime.AddCleanup(val, func(struct{}) { gone <- struct{}{} }, struct{}{})
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, val))
			_, err := b.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, muxtest.Method("Chat"))
			require.NoError(t, err)
			cancel() // suffices by the documentation of grpc.ClientConnInterface
		}()
	}
	assert.Eventually(t, func() bool {
		runtime.GC()
		return len(gone) == streams
	}, 10*time.Second, 50*time.Millisecond, "what its context holds is kept")
	assert.Equal(t, backend.Up, b.State().Condition)
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
		w := n.watch(t, func(cfg *settings) { cfg.Required = true })
		ctx := passed{t.Context(), time.Now().Add(10 * time.Second)}
		err := w.Invoke(ctx, muxtest.Method("List"), &codec.Frame{}, &codec.Frame{})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), err)
	})
}
