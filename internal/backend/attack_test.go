package backend_test

import (
	"context"
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

// The cases in this file were found by an attack with nothing but the package's documentation.

// In this test, Alive is Get.
func TestAnErrorOfAliveAloneEndsNothing(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.Canceled, codes.DeadlineExceeded, codes.Unimplemented} {
		t.Run(code.String(), func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				n.when(func(ctx context.Context, method string) error {
					switch method {
					case "Get":
						return status.Error(code, "no")
					case "Bind":
						return hang(ctx, method)
					case "List":
						return taking(3*time.Second)(ctx, method)
					}
					return nil
				})
				ended := make(chan error, 1)
				go func() { ended <- w.bind(ctx, "a") }()
				time.Sleep(time.Minute)
				assert.Equal(t, backend.Slow, w.State().Condition, "%v", w.State().Err)
				assert.Empty(t, ended, "a call under way goes on")
				cancel()
				<-ended
			}, "a")
		})
	}
}

func TestABackendComesBackWithoutAlive(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		assert.Nil(t, w.Back(), "it has not gone")
		n.goes(t, w)
		back := w.Back()
		n.when(only("Get", func(context.Context, string) error { return status.Error(codes.Internal, "no") }))
		n.library.with(func() { n.down = false })
		time.Sleep(time.Minute)
		assert.NotEqual(t, backend.Gone, w.State().Condition, "its lists are answered")
		<-back
		assert.Nil(t, w.Back())
	}, "a")
}

// Requests that hung are never answered, although the library works again.
func TestLostRequestsKeepNoBackendSlow(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", hang))
		time.Sleep(40 * time.Second)
		require.Equal(t, backend.Slow, w.State().Condition)
		n.when(nil)
		n.library.with(func() { n.library.books["b"] = "" })
		time.Sleep(30 * time.Second)
		w.lists(t, `books {id: "a"} books {id: "b"}`)
		time.Sleep(15 * time.Second)
		assert.Equal(t, backend.Up, w.State().Condition)
	}, "a")
}

func TestABackendThatAlternatesIsNotSlowAndUpInTurn(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		lists := 0
		n.when(only("List", func(ctx context.Context, method string) error {
			late := false
			n.library.with(func() { lists++; late = lists%5 == 0 })
			if late {
				return taking(2300*time.Millisecond)(ctx, method)
			}
			return nil
		}))
		time.Sleep(5 * time.Minute)
		assert.LessOrEqual(t, len(w.states), 2, "one line for each change")
	}, "a")
}

// The backend goes right after it has created a book, before any client has asked for the list.
func TestANewItemIsListedThoughNoListShowedIt(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		require.NoError(t, w.Invoke(t.Context(), muxtest.Method("Put"), muxtest.Frame(t, "PutRequest", `shelf: "b"`), &codec.Frame{}))
		n.goes(t, w)
		w.lists(t, `books {id: "a"} books {id: "b"}`)
	}, "a")
}

// One long call on the connection from before a reload does not make the backend count as silent.
func TestALongCallOutlivesAReload(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("Bind", taking(time.Minute)))
		ended := make(chan error, 1)
		go func() { ended <- w.bind(t.Context(), "a") }()
		time.Sleep(time.Second)
		w.Retire()
		assert.NoError(t, <-ended)
	}, "a")
}
