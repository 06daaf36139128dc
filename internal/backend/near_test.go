package backend_test

import (
	"context"
	"path/filepath"
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
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// near is a connection to a library without a socket. Time in these tests is that of
// testing/synctest: minutes pass at once, and exactly, however busy the machine is.
// library.mu guards it.
type near struct {
	library *library
	down    bool                                         // the library cannot be reached
	fault   func(ctx context.Context, name string) error // of calls on this connection; nil: none
	after   func(name string)                            // called when an answer has been made and before it leaves
}

// unreachable is the error of a call to a library that is down.
type unreachable struct{}

func (unreachable) Error() string     { return "connection refused" }
func (unreachable) Unreachable() bool { return true }
func (unreachable) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, "connection refused")
}

func (n *near) Call(ctx context.Context, call *codec.Call) error {
	var down bool
	var after func(string)
	var fault func(context.Context, string) error
	n.library.with(func() { down, after, fault = n.down, n.after, n.fault })
	if down {
		return unreachable{}
	}
	if fault != nil {
		if err := fault(ctx, call.Method); err != nil {
			return err
		}
	}
	reply, err := n.library.answer(ctx, filepath.Base(call.Method), call.Request)
	if after != nil {
		after(call.Method)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	call.Reply = reply
	return err
}

func (n *near) Open(ctx context.Context, _ *grpc.StreamDesc, name string, _ *codec.Frame) (codec.Stream, error) {
	if name == muxtest.Method("Chat") {
		return chat{ctx: ctx}, nil
	}
	return nil, status.Error(codes.Unimplemented, "it streams no lists")
}

// chat is a stream on which nobody says anything.
type chat struct {
	codec.Stream
	ctx context.Context
}

func (c chat) Recv() (*codec.Frame, error) {
	<-c.ctx.Done()
	return nil, status.FromContextError(c.ctx.Err()).Err()
}

func (n *near) absent(context.Context) (down bool) {
	n.library.with(func() { down = n.down })
	return down
}

// inNoTime runs a test with a library on a simulated clock.
func inNoTime(t *testing.T, test func(t *testing.T, n *near), ids ...string) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		l := &library{books: map[string]string{}}
		for _, id := range ids {
			l.books[id] = ""
		}
		test(t, &near{library: l})
	})
}

// config returns the defaults, changed.
func (n *near) config(t testing.TB, change func(*settings)) settings {
	t.Helper()
	cfg := settings{Config: backend.Config{
		Name: "beta.io", Next: n, Schema: muxtest.Library, Package: muxtest.Package,
		Spec:   muxtest.LibraryProfile(t).Known,
		Absent: n.absent,
		Alive:  muxtest.Method("Get"),
	}}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// watch runs a Backend in front of the library until the test ends or stop is called.
func (n *near) watch(t *testing.T, change func(*settings)) *watched {
	t.Helper()
	w := &watched{states: make(chan backend.State, 1000)}
	w.Backend = n.config(t, w.told(change)).begin(t)
	w.run(t)
	time.Sleep(5 * time.Second) // the cache has the list and all statuses
	return w
}

// successor runs what w hands over, until the test ends.
func (n *near) successor(t *testing.T, w *watched, change func(*settings)) *watched {
	t.Helper()
	handed, err := w.Encode()
	require.NoError(t, err)
	next, err := backend.Receive("beta.io", backend.File{}, handed)
	require.NoError(t, err)
	return n.watch(t, func(c *settings) {
		c.Backend = next
		if change != nil {
			change(c)
		}
	})
}

// told returns change after w is to get the states.
func (w *watched) told(change func(*settings)) func(*settings) {
	return func(c *settings) {
		c.Watch = func(s backend.State) { w.states <- s }
		if change != nil {
			change(c)
		}
	}
}

// run runs the Backend until the test ends or stop is called.
func (w *watched) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		assert.NoError(t, w.Run(ctx))
	}()
	w.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(w.stop)
}

// reload replaces the link of w by one to n, and returns it.
func (n *near) reload(t *testing.T, w *watched, change func(*settings)) *backend.Link {
	t.Helper()
	c, err := w.Stage(n.config(t, w.told(change)).Config)
	require.NoError(t, err)
	c.Commit()
	return c
}

// when sets what happens to calls.
func (n *near) when(fault func(ctx context.Context, method string) error) {
	n.library.with(func() { n.library.fault = fault })
}

// goes takes the library down, and makes a call so that w notices.
func (n *near) goes(t *testing.T, w *watched) {
	t.Helper()
	n.library.with(func() { n.down = true })
	_, _ = w.get(t, "nothing") // fails
	require.Equal(t, backend.Gone, w.State().Condition)
}

// comes lets the library be there again after a time.
func (n *near) comes(after time.Duration) {
	time.AfterFunc(after, func() { n.library.with(func() { n.down = false }) })
}

// bind makes a call that changes a book in a way that no list shows.
func (w *watched) bind(ctx context.Context, id string) error {
	return w.Invoke(ctx, muxtest.Method("Bind"), muxtest.Bytes("GetRequest", "book_id: '"+id+"'"), &codec.Frame{})
}

// only returns a fault of one method.
func only(method string, fault func(context.Context, string) error) func(context.Context, string) error {
	return func(ctx context.Context, m string) error {
		if m == method {
			return fault(ctx, m)
		}
		return nil
	}
}

// taking is a fault that makes calls take longer.
func taking(d time.Duration) func(context.Context, string) error {
	return func(ctx context.Context, _ string) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// holding holds up the next answer of a method. It closes held when the answer has been made; the
// answer leaves when the test closes release.
func (n *near) holding(method string) (held, release chan struct{}) {
	held, release = make(chan struct{}), make(chan struct{})
	taken := false
	n.library.with(func() {
		n.after = func(name string) {
			mine := false
			n.library.with(func() {
				mine = name == muxtest.Method(method) && !taken
				taken = taken || mine
			})
			if mine {
				close(held)
				<-release
			}
		}
	})
	return held, release
}
