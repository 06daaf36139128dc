package backend_test

import (
	"context"
	"errors"
	"path/filepath"
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

// removing makes Bind remove the book that it names.
func removing(c *settings) {
	c.Spec.Lists[0].Changed, c.Spec.Lists[0].Removed = []string{"Put"}, []string{"Bi*"}
}

func TestAListThatFailsShowsWhatWasCreated(t *testing.T) {
	for name, fault := range map[string]func(context.Context, string) error{
		"fails": func(context.Context, string) error { return errors.New("no lists today") },
		"hangs": hang,
	} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, func(c *settings) { c.Primary = true })
				n.when(only("List", fault))
				require.NoError(t, w.Invoke(t.Context(), muxtest.Method("Put"), muxtest.Frame(t, "PutRequest", `shelf: "b" book {title: "Tale"}`), &codec.Frame{}))
				for range 3 {
					w.lists(t, `books {id: "a"} books {id: "b" title: "Tale"}`)
				}
			}, "a")
		})
	}
}

func TestAChangeHoldsUpListsOnlyOnce(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", hang))
		require.NoError(t, w.bind(t.Context(), "a"))
		time.Sleep(backend.DefaultSilence - 3*time.Second)
		began := time.Now()
		_, err := w.list(t, "")
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(began), 4*time.Second, "the change was a while ago")
		for range 5 { // however many changes follow
			require.NoError(t, w.bind(t.Context(), "a"))
			w.lists(t, `books {id: "a"}`)
		}
		assert.LessOrEqual(t, time.Since(began), 4*time.Second, "all together")
	}, "a")
}

// The backend answers the status of a book while its lists hang.
func TestABackendThatAnsweredAnythingMayHaveItems(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.when(only("List", hang))
		w := n.watch(t, nil)
		_, err := w.get(t, "a")
		require.NoError(t, err)
		n.goes(t, w)
		_, err = w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err))
	}, "a")
}

// On a full disk the file can be emptied, but not written.
func TestAFileThatCouldNotBeWrittenIsNotBelieved(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		dir := t.TempDir()
		file := backend.File{Path: filepath.Join(dir, "beta.io.known")}
		w := n.watch(t, func(c *settings) { c.Backend = backend.Open("beta.io", file) })
		require.NoError(t, w.Save())
		backend.FailWrites(w.Backend)
		require.NoError(t, w.Invoke(t.Context(), muxtest.Method("Put"), muxtest.Frame(t, "PutRequest", `shelf: "b"`), &codec.Frame{}))
		require.Error(t, w.Save())
		w.Retire()
		w.Release()
		n.library.with(func() { n.down = true })

		w = n.watch(t, func(c *settings) { c.Backend = backend.Open("beta.io", file) })
		_, err := w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err), "it lacks b")
	}, "a")
}

func TestAHandoverHoldsUpNoList(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", hang))
		_, err := w.list(t, "")
		require.NoError(t, err)
		data, err := w.Encode()
		require.NoError(t, err)
		w.Retire()
		next, err := backend.Receive("beta.io", backend.File{}, data)
		require.NoError(t, err)
		require.NoError(t, next.Use(n.config(t, nil).Config))
		began := time.Now()
		reply := &codec.Frame{}
		require.NoError(t, next.Invoke(t.Context(), muxtest.Method("List"), &codec.Frame{}, reply))
		assert.Equal(t, `books {id: "a"}`, muxtest.Text("ListResponse", reply))
		assert.Less(t, time.Since(began), backend.DefaultBudget)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, next.Run(ctx))
	}, "a")
}
