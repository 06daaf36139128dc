package director_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func endlessProfile(t *testing.T) *director.Profile {
	return muxtest.LibraryProfile(t, "List|Stream: {all: concat}", "List: {all: concat}\n  Stream: {all: endless}")
}

// ticking sends books, one after another, until the client leaves.
func ticking(_ string, stream grpc.ServerStream) error {
	for i := 0; ; i++ {
		if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: '%d'}", i))); err != nil {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// A listener is a client that has opened the endless stream.
type listener struct {
	testing.TB
	cs grpc.ClientStream
}

func listen(t testing.TB, cc *grpc.ClientConn) listener {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	cs := open(t, ctx, cc, &serverStream, muxtest.Method("Stream"))
	require.NoError(t, cs.CloseSend())
	return listener{t, cs}
}

// hears waits for a message.
func (l listener) hears(want string) {
	l.Helper()
	for {
		f := &codec.Frame{}
		require.NoError(l, l.cs.RecvMsg(f), "waiting for %s", want)
		if muxtest.Text("ListResponse", f) == want {
			return
		}
	}
}

func TestAnEndlessStreamOutlivesThoseOfItsBackends(t *testing.T) {
	t.Parallel()
	type end struct {
		name  string
		early bool // before the first message
		err   error
		last  *codec.Frame
	}
	ends := []end{{name: "a good end"}, {name: "a good end at once", early: true}, {name: "no message", last: codec.NewFrame([]byte("\x0a\xff"))}}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		ends = append(ends, end{name: code.String(), err: status.Error(code, "it ends")}, end{name: code.String() + " at once", early: true, err: status.Error(code, "it ends")})
	}
	for _, c := range ends {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var opened atomic.Int32
			ending := func(_ string, stream grpc.ServerStream) error {
				n := opened.Add(1)
				if !c.early || n > 1 {
					if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: 'after %d'}", n-1))); err != nil {
						return err
					}
				}
				if n > 1 {
					<-stream.Context().Done()
					return stream.Context().Err()
				}
				if c.last != nil {
					return stream.SendMsg(c.last)
				}
				return c.err
			}
			for i, name := range []string{"", "beta.io__"} {
				opened.Store(0)
				handlers := []muxtest.Handler{ticking, ticking}
				handlers[i] = ending
				if i == 0 && c.last != nil {
					continue // this test does not look at the primary's messages
				}
				l := listen(t, muxtest.Mux(t, director.Config{Profile: endlessProfile(t)}, handlers...))
				l.hears(fmt.Sprintf(`books {id: "%safter 1"}`, name))
				for range 10 {
					require.NoError(t, l.cs.RecvMsg(&codec.Frame{}), "the other one goes on")
				}
			}
		})
	}
}

// moving is a Conn that goes on to another connection.
type moving struct{ at atomic.Pointer[place] }

type place struct {
	grpc.ClientConnInterface
	generation uint64
}

func (m *moving) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	return m.at.Load().Invoke(ctx, name, args, reply, opts...)
}

func (m *moving) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return m.at.Load().NewStream(ctx, desc, name, opts...)
}

func (m *moving) Generation() uint64 { return m.at.Load().generation }

func TestReloadsReachAnEndlessStream(t *testing.T) {
	dir := muxtest.Dir(t)
	opened, left := make(chan string, 10), make(chan string, 10)
	backend := func(name, says string) director.Backend {
		return muxtest.Backend(t, filepath.Join(dir, says), name, func(_ string, stream grpc.ServerStream) error {
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: %q}", says))); err != nil {
				return err
			}
			opened <- says
			<-stream.Context().Done()
			left <- says
			return stream.Context().Err()
		})
	}
	primary, beta := backend("", "one"), backend("beta.io", "two")
	cfg := director.Config{Profile: endlessProfile(t), Schema: muxtest.Library, Backends: []director.Backend{primary, beta}}
	d := muxtest.New(t, cfg)
	assert.True(t, d.Endless(muxtest.Method("Stream")))
	assert.False(t, d.Endless(muxtest.Method("List")))
	l := listen(t, muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d)))
	l.hears(`books {id: "beta.io__two"}`)
	assert.ElementsMatch(t, []string{"one", "two"}, []string{<-opened, <-opened})
	reload := func(backends ...director.Backend) {
		cfg.Backends = backends
		require.NoError(t, d.Reload(cfg))
	}
	goesOn := &moving{}
	goesOn.at.Store(&place{beta.Conn, 0})
	beta.Conn = goesOn
	reload(primary, beta)
	assert.Equal(t, "two", <-left)
	assert.Equal(t, "two", <-opened)
	goesOn.at.Store(&place{backend("beta.io", "moved").Conn, 1})
	reload(primary, beta)
	l.hears(`books {id: "beta.io__moved"}`)
	assert.Equal(t, "two", <-left)
	reload(primary, beta)

	reload(primary, backend("gamma.io", "three"), beta)
	l.hears(`books {id: "gamma.io__three"}`)
	reload(primary, cfg.Backends[1])
	assert.Equal(t, "moved", <-left)
	reload(primary, backend("gamma.io", "four"))
	l.hears(`books {id: "gamma.io__four"}`)
	assert.Equal(t, "three", <-left)
	reload(backend("", "five"))
	l.hears(`books {id: "five"}`)
	assert.ElementsMatch(t, []string{"one", "four"}, []string{<-left, <-left})

	cfg.Profile = muxtest.LibraryProfile(t)
	require.NoError(t, d.Reload(cfg))
	assert.EqualError(t, l.cs.RecvMsg(&codec.Frame{}), "rpc error: code = Unavailable desc = criproxy: a reload has changed the profile, and with it this stream; open it again")
}

func TestAPanicEndsNoEndlessStream(t *testing.T) {
	var told, at = atomic.Int32{}, atomic.Value{}
	at.Store("")
	dir := muxtest.Dir(t)
	cfg := director.Config{Profile: endlessProfile(t), Schema: muxtest.Library, Panicked: func(string, any, []byte) { told.Add(1) }}
	for i, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(dir, fmt.Sprint(i)), name, ticking)
		if i > 0 {
			b.Conn = panicky{b.Conn, &at}
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	d := muxtest.New(t, cfg)
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d))
	for _, point := range []string{"NewStream", "SendMsg", "CloseSend", "RecvMsg"} {
		before := told.Load()
		at.Store(point)
		l := listen(t, cc)
		for told.Load() < before+2 {
			require.NoError(t, l.cs.RecvMsg(&codec.Frame{}))
		}
		at.Store("")
		l.hears(`books {id: "beta.io__0"}`)
	}
}

func TestAnEndlessStreamEndsWithItsClient(t *testing.T) {
	opened, gone := make(chan struct{}, 2), make(chan error, 2)
	flood := func(_ string, stream grpc.ServerStream) error {
		opened <- struct{}{}
		for {
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", "books {id: '1'}")); err != nil {
				<-stream.Context().Done()
				gone <- stream.Context().Err()
				return err
			}
		}
	}
	cc := muxtest.Mux(t, director.Config{Profile: endlessProfile(t)}, flood, flood)
	ctx, cancel := context.WithCancel(t.Context())
	cs := open(t, ctx, cc, &serverStream, muxtest.Method("Stream"))
	require.NoError(t, cs.RecvMsg(&codec.Frame{}))
	<-opened
	<-opened
	cancel() // while the client reads nothing
	for range 2 {
		assert.ErrorIs(t, <-gone, context.Canceled)
	}
}

// resync counts its calls, and returns the same message each time.
type resync struct{ begun, looked, ended *atomic.Int32 }

func (r resync) Begin(context.Context, grpc.ClientConnInterface) error { r.begun.Add(1); return nil }
func (r resync) Saw(f *codec.Frame) error {
	if muxtest.Text("ListResponse", f) == `books {id: "bad"}` {
		return io.ErrUnexpectedEOF
	}
	return nil
}
func (r resync) Look(context.Context, grpc.ClientConnInterface) ([]*codec.Frame, error) {
	r.looked.Add(1)
	return []*codec.Frame{muxtest.Bytes("ListResponse", "books {id: 'missed'}")}, nil
}
func (r resync) End() []*codec.Frame {
	r.ended.Add(1)
	return []*codec.Frame{muxtest.Bytes("ListResponse", "books {id: 'ended'}")}
}

func TestAResyncTellsWhatAStreamMissed(t *testing.T) {
	var r = resync{&atomic.Int32{}, &atomic.Int32{}, &atomic.Int32{}}
	var bad atomic.Bool
	cfg := director.Config{
		Profile:      muxtest.LibraryProfile(t, "List|Stream: {all: concat}", "List: {all: concat}\n  Stream: {all: endless, resync: books}"),
		Resyncs:      map[string]func() director.Resync{"books": func() director.Resync { return r }},
		LookInterval: 50 * time.Millisecond,
		Schema:       muxtest.Library,
	}
	dir := muxtest.Dir(t)
	for i, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(dir, fmt.Sprint(i)), name, func(method string, stream grpc.ServerStream) error {
			if i == 0 || bad.Swap(false) {
				return stream.SendMsg(muxtest.Bytes("ListResponse", "books {id: 'bad'}"))
			}
			return ticking(method, stream)
		})
		cfg.Backends = append(cfg.Backends, b)
	}
	d := muxtest.New(t, cfg)
	bad.Store(true)
	l := listen(t, muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d)))
	l.hears(`books {id: "missed"}`) // the primary's stream always ends
	l.hears(`books {id: "beta.io__missed"}`)
	l.hears(`books {id: "beta.io__50"}`)
	assert.EqualValues(t, 2, r.begun.Load())
	cfg.Backends = cfg.Backends[:1]
	require.NoError(t, d.Reload(cfg))
	l.hears(`books {id: "beta.io__ended"}`)
	l.hears(`books {id: "missed"}`)
	assert.EqualValues(t, 1, r.ended.Load())
}

// numbered is the resync of the n-th member of a stream.
type numbered int32

func (numbered) Begin(context.Context, grpc.ClientConnInterface) error { return nil }
func (numbered) Saw(*codec.Frame) error                                { return nil }
func (n numbered) Look(context.Context, grpc.ClientConnInterface) ([]*codec.Frame, error) {
	return []*codec.Frame{muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: 'has %d'}", n))}, nil
}
func (n numbered) End() []*codec.Frame {
	f := muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: 'ended %d'}", n))
	all := make([]*codec.Frame, longEnd)
	for i := range all {
		all[i] = f.Ref()
	}
	return all
}

const longEnd = 40 // messages: more than a member may be ahead of its client

// Without the right order, a client that reads late would take new objects for gone.
func TestABackendThatComesBackIsNewAfterItsEnd(t *testing.T) {
	var members atomic.Int32
	cfg := director.Config{
		Profile:      muxtest.LibraryProfile(t, "List|Stream: {all: concat}", "List: {all: concat}\n  Stream: {all: endless, resync: books}"),
		Resyncs:      map[string]func() director.Resync{"books": func() director.Resync { return numbered(members.Add(1)) }},
		LookInterval: time.Hour,
		Schema:       muxtest.Library,
	}
	dir := muxtest.Dir(t)
	for i, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(dir, fmt.Sprint(i)), name, func(_ string, stream grpc.ServerStream) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		})
		cfg.Backends = append(cfg.Backends, b)
	}
	both := cfg.Backends
	d := muxtest.New(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cs := open(t, ctx, d, &serverStream, muxtest.Method("Stream")) // without the buffers of a connection
	require.Eventually(t, func() bool { return members.Load() == 2 }, 10*time.Second, time.Millisecond)
	for n := int32(2); n < 10; n++ {
		cfg.Backends = both[:1]
		require.NoError(t, d.Reload(cfg))
		if n%2 == 0 { // in every second round, wait until the member has ended its stream
			muxtest.Parked(t, 1, "director.(*member).sendEnd")
		}
		cfg.Backends = both
		require.NoError(t, d.Reload(cfg))
		require.Eventually(t, func() bool { return members.Load() == n+1 }, 10*time.Second, time.Millisecond)
		muxtest.Parked(t, 3, "director.(*member).run") // both members of this backend, and the primary's
		end, start := fmt.Sprintf(`books {id: "beta.io__ended %d"}`, n), fmt.Sprintf(`books {id: "beta.io__has %d"}`, n+1)
		for _, want := range append(slices.Repeat([]string{end}, longEnd), start) {
			f := &codec.Frame{}
			require.NoError(t, cs.RecvMsg(f), "%d: %s", n, want)
			require.Equal(t, want, muxtest.Text("ListResponse", f))
		}
	}
}

// A client that is slower than its only backend gets all messages that came before the end.
func TestAnEndCutsOffNoMessages(t *testing.T) {
	const messages = 20
	b := muxtest.Backend(t, filepath.Join(muxtest.Dir(t), "s"), "", func(_ string, stream grpc.ServerStream) error {
		for i := range messages {
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: '%d'}", i))); err != nil {
				return err
			}
		}
		return status.Error(codes.Aborted, "it ends")
	})
	d := muxtest.New(t, director.Config{Profile: endlessProfile(t), Schema: muxtest.Library, Backends: []director.Backend{b}})
	// Without the buffers of a connection. Trailer waits for the end.
	cs := open(t, t.Context(), d, &serverStream, muxtest.Method("Stream"))
	_ = cs.Trailer()
	for i := range messages {
		f := &codec.Frame{}
		require.NoError(t, cs.RecvMsg(f))
		require.Equal(t, fmt.Sprintf(`books {id: "%d"}`, i), muxtest.Text("ListResponse", f))
	}
	assert.Equal(t, codes.Aborted, status.Code(cs.RecvMsg(&codec.Frame{})))
}

// For a client that reads nothing, no more than a window of messages waits here, however long they are.
func TestLongMessagesWaitAtTheirBackend(t *testing.T) {
	const size = 40_000
	var sent atomic.Int32
	b := muxtest.Backend(t, filepath.Join(muxtest.Dir(t), "s"), "", func(_ string, stream grpc.ServerStream) error {
		for {
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: '%s'}", strings.Repeat("x", size)))); err != nil {
				return err
			}
			sent.Add(1)
		}
	})
	d := muxtest.New(t, director.Config{Profile: endlessProfile(t), Schema: muxtest.Library, Backends: []director.Backend{b}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cs := open(t, ctx, d, &serverStream, muxtest.Method("Stream")) // without the buffers of a connection
	muxtest.Parked(t, 1, "director.(*endless).pass")
	for range 100 { // the stream goes on as soon as the client reads
		require.NoError(t, cs.RecvMsg(&codec.Frame{}))
	}
	muxtest.Parked(t, 1, "director.(*endless).pass")
	assert.Less(t, sent.Load(), int32(100+25), "messages that were sent and not read")
}

// endingConn is a connection to a backend whose streams have one message, and end when the test says so.
type endingConn struct {
	grpc.ClientConnInterface
	end chan struct{}
}

func (c endingConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := c.ClientConnInterface.NewStream(ctx, desc, name, opts...)
	return &endingStream{ClientStream: cs, end: c.end}, err
}

type endingStream struct {
	grpc.ClientStream
	end   chan struct{}
	spoke bool
}

func (s *endingStream) RecvMsg(m any) error {
	if !s.spoke {
		s.spoke = true
		return s.ClientStream.RecvMsg(m)
	}
	<-s.end
	return status.Error(codes.Unavailable, "the connection is closed")
}

// The reload that adds a backend also closes the connection on which the stream of the only one was. With one processor
// the stream notices that first.
func TestAReloadThatEndsTheOnlyStreamEndsNotAll(t *testing.T) {
	dir := muxtest.Dir(t)
	backend := func(name string) director.Backend {
		return muxtest.Backend(t, filepath.Join(dir, "backend"+name), name, ticking)
	}
	primary, beta := backend(""), backend("beta.io")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for i := range 10 {
		end := make(chan struct{})
		alone := director.Backend{Conn: endingConn{primary.Conn, end}}
		cfg := director.Config{Profile: endlessProfile(t), Schema: muxtest.Library, Backends: []director.Backend{alone}}
		d := muxtest.New(t, cfg)
		l := listen(t, muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, fmt.Sprint("mux", i)), d)))
		l.hears(`books {id: "0"}`)
		cfg.Backends = []director.Backend{primary, beta}
		require.NoError(t, d.Reload(cfg))
		close(end)
		l.hears(`books {id: "beta.io__0"}`)
	}
}
