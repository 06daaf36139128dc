package lastknown_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/muxtest"
)

// near is a way to a library without a socket, for the clock of testing/synctest: a test
// of minutes takes none, and is as exact on a busy machine. It is guarded by library.mu.
type near struct {
	grpc.ClientConnInterface
	library *library
	down    bool              // nobody listens
	after   func(name string) // is called before an answer leaves
}

// unreachable is the error of a call that found nobody.
type unreachable struct{}

func (unreachable) Error() string     { return "nobody listens" }
func (unreachable) Unreachable() bool { return true }
func (unreachable) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, "nobody listens")
}

func (n *near) Invoke(ctx context.Context, name string, args, reply any, _ ...grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	var down bool
	var after func(string)
	n.library.with(func() { down, after = n.down, n.after })
	if down {
		return unreachable{}
	}
	s := &exchange{ctx: ctx, request: codec.NewFrame(append([]byte{}, request.Bytes()...))}
	err = n.library.serve(name, s)
	if after != nil {
		after(name)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return err
	}
	return codec.Deliver(reply, s.reply)
}

func (n *near) absent(context.Context) (down bool) {
	n.library.with(func() { down = n.down })
	return down
}

// exchange is the library's side of a unary call.
type exchange struct {
	grpc.ServerStream
	ctx            context.Context
	request, reply *codec.Frame
}

func (e *exchange) Context() context.Context { return e.ctx }
func (e *exchange) RecvMsg(m any) error      { return codec.Deliver(m, e.request) }
func (e *exchange) SendMsg(m any) (err error) {
	e.reply, err = codec.FrameOf(m)
	return err
}

// inNoTime runs a test with a library on a clock of its own.
func inNoTime(t *testing.T, test func(t *testing.T, n *near), ids ...string) {
	synctest.Test(t, func(t *testing.T) {
		l := &library{books: map[string]string{}}
		for _, id := range ids {
			l.books[id] = ""
		}
		test(t, &near{library: l})
	})
}

// config returns the defaults, changed.
func (n *near) config(t *testing.T, change func(*lastknown.Config)) lastknown.Config {
	t.Helper()
	cfg := lastknown.Config{
		Name: "beta.io", Conn: n, Schema: muxtest.Library, Package: muxtest.Package,
		Spec:   muxtest.LibraryProfile(t).Known,
		Absent: n.absent,
		Alive:  muxtest.Method("Get"),
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// watch is [watch] with the defaults, for a backend without a socket.
func (n *near) watch(t *testing.T, change func(*lastknown.Config)) *watched {
	t.Helper()
	w := &watched{states: make(chan lastknown.State, 1000)}
	cfg := n.config(t, change)
	cfg.Watch = func(s lastknown.State) { w.states <- s }
	var err error
	w.Conn, err = lastknown.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		assert.NoError(t, w.Run(ctx))
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	time.Sleep(5 * time.Second) // everything is known, statuses included
	return w
}

// when sets what happens to calls.
func (n *near) when(fault func(ctx context.Context, method string) error) {
	n.library.with(func() { n.library.fault = fault })
}

// goes makes the library stop to listen.
func (n *near) goes(t *testing.T, w *watched) {
	t.Helper()
	n.library.with(func() { n.down = true })
	_, _ = w.get(t, "nothing") // finds out
	require.Equal(t, lastknown.Gone, w.State().Condition)
}

// bind does a call that changes a book, in a way that no list shows.
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

// taking is a fault that has calls take longer.
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

// holding returns a function that holds the next answer of a method, which has been made,
// until it is released.
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
