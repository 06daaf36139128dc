package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// Every 2 s kubelet tries to stop a container of a gone runtime. After the runtime came back slow, each
// try used to make clients wait for its list.
func TestARefusedCallOutdatesNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.goes(t, w)
		assert.Equal(t, codes.Unavailable, status.Code(w.bind(t.Context(), "a")))
		n.when(only("List", hang))
		n.library.with(func() { n.down = false })
		w.until(t, backend.Slow)
		began := time.Now()
		w.lists(t, `books {id: "a"}`)
		assert.Zero(t, time.Since(began), "the cache still has the list, and answers at once")
	}, "a")
}

func TestALateStatusDoesNotReplaceANewerOne(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		held, release := n.holding("Get")
		go w.get(t, "a") // its answer is the old status
		<-held
		n.library.with(func() { n.library.books["a"] = `title: "new"` })
		_, err := w.list(t, "")
		require.NoError(t, err)
		time.Sleep(1500 * time.Millisecond) // Run has asked for its status
		close(release)
		time.Sleep(1500 * time.Millisecond) // and again, because the two differ
		n.goes(t, w)
		got, err := w.get(t, "a")
		require.NoError(t, err)
		assert.Contains(t, got, `title: "new"`)
	}, "a")
}

// A reload may fail after its links are made.
func TestALinkThatIsNotCommittedChangesNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		before, generation := w.State(), w.Generation()
		_, err := w.Stage(n.config(t, func(c *settings) {
			c.Next, c.Alive, c.Spec.Lists[0].ID = &near{library: n.library, down: true}, "", "title" // which lists cannot be read by
		}).Config)
		require.NoError(t, err)
		assert.Equal(t, generation, w.Generation())
		w.Learn(inventory.Note{Method: muxtest.Method("Put"), Request: muxtest.Bytes("PutRequest", `shelf: "b"`).Bytes(), Reply: muxtest.Bytes("Book", `id: "b"`).Bytes(), OK: true})
		assert.Equal(t, before, w.State())
		n.goes(t, w)
		w.lists(t, `books {id: "a"} books {id: "b"}`)
	}, "a")
}

// Calls under way at a reload finish on the connection that they began on.
func TestACallThatOutlivesAReloadIsRemembered(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Budget = time.Minute })
		n.library.with(func() { n.library.books["b"] = "" })
		held, release := n.holding("List")
		told := make(chan string)
		go func() {
			got, _ := w.list(t, "")
			told <- got
		}()
		<-held
		n.when(only("List", hang))
		n.reload(t, w, nil)
		close(release)
		require.Equal(t, `books {id: "a"} books {id: "b"}`, <-told)
		w.lists(t, `books {id: "a"} books {id: "b"}`, "a client knows of b already")
	}, "a")
}
