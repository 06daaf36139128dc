package backend_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/backend"
)

// lookups has 20 clients look for 50 books each, every tenth of which was made a moment before, by somebody else. It
// returns how many lists that cost, beyond those that Run makes.
func (w *watched) lookups(t *testing.T, n *near, found bool) int {
	t.Helper()
	const everySecond = time.Second // of the profile
	_ = n.library.called("List")    // those before
	began := time.Now()
	var clients sync.WaitGroup
	for client := range 20 {
		clients.Go(func() {
			for i := range 50 {
				id := fmt.Sprint("book-", client, "-", i)
				made := i%10 == 0
				if made {
					n.library.with(func() { n.library.books[id] = "" })
				}
				w.Refresh(t.Context(), "book")
				if found {
					assert.Equal(t, made, w.Match("book", []byte(id)).Whole, id)
				}
				time.Sleep(time.Duration(client) * time.Millisecond)
			}
		})
	}
	clients.Wait()
	took := time.Since(began)
	lists := n.library.called("List") - int(took/everySecond) - 1
	assert.LessOrEqual(t, lists, int(took/(250*time.Millisecond))+1, "in %s", took)
	return lists
}

// Each look-up of an id that no backend has made a list of its own: an agent with 1,000 of them asked for 1,000 lists. See issue 40.
func TestLookUpsShareLists(t *testing.T) {
	for name, taking := range map[string]func(context.Context, string) error{
		"a list that comes at once":   nil,
		"a list that takes its time":  only("List", taking(20*time.Millisecond)),
		"a list that takes very long": only("List", taking(400*time.Millisecond)),
	} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, nil)
				n.when(taking)
				lists := w.lookups(t, n, true)
				assert.Positive(t, lists)
			}, "a")
		})
	}
}

func TestLookUpsShareListsThatFail(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", func(context.Context, string) error { return status.Error(codes.Internal, "no space left on device") }))
		w.until(t, backend.Slow)
		w.lookups(t, n, false)
	}, "a")
}

// The list under way may have been made before the item was.
func TestALookUpDoesNotTrustAListThatBeganBefore(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		held, release := n.holding("List")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.Refresh(t.Context(), "book")
		}()
		<-held
		n.library.with(func() { n.library.books["b"] = "" })
		time.AfterFunc(100*time.Millisecond, func() { close(release) })
		w.Refresh(t.Context(), "book")
		assert.True(t, w.Match("book", []byte("b")).Whole)
		<-ended
	}, "a")
}

// A look-up that finds nothing costs the budget of a list once: from then on the list is known to be late.
func TestLookUpsWaitForAListThatHangsOnce(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Interval = time.Hour }) // Run asks for nothing
		n.when(only("List", hang))
		took := func() time.Duration {
			began := time.Now()
			w.Refresh(t.Context(), "book")
			return time.Since(began)
		}
		assert.Equal(t, backend.DefaultBudget, took())
		require.Equal(t, backend.Slow, w.State().Condition)
		for range 5 {
			assert.LessOrEqual(t, took(), 250*time.Millisecond)
		}
	}, "a")
}

// The list that calls share goes on when the call that began it is over.
func TestALookUpThatIsCancelledEndsAlone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", taking(time.Second)))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		var clients sync.WaitGroup
		clients.Go(func() {
			w.Refresh(ctx, "book")
			assert.Equal(t, 100*time.Millisecond, time.Since(began))
		})
		clients.Go(func() {
			n.library.with(func() { n.library.books["b"] = "" })
			w.Refresh(t.Context(), "book")
			assert.True(t, w.Match("book", []byte("b")).Whole)
		})
		clients.Wait()
	}, "a")
}
