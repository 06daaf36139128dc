package replay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A library is a server that gives names of its own to the books it gets.
type library struct {
	name  string // in front of the names
	title func(string) string

	mu    sync.Mutex
	books map[string]string // :: id → title
	moved chan struct{}     // closed with each book
	seen  []string          // requests, as text
}

func newLibrary(name string) *library {
	return &library{name: name, title: func(s string) string { return s }, books: map[string]string{}, moved: make(chan struct{})}
}

func fields(request *codec.Frame, message string) protoreflect.Message {
	m := dynamicpb.NewMessage(muxtest.Message(message))
	if err := proto.Unmarshal(request.Bytes(), m); err != nil {
		panic(err)
	}
	return m
}

func (l *library) handle(method string, stream grpc.ServerStream) error {
	if method == muxtest.Method("Chat") {
		return echo(stream)
	}
	request := &codec.Frame{}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	l.mu.Lock()
	l.seen = append(l.seen, string(request.Bytes()))
	reply, err := l.answer(method, request)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if method != muxtest.Method("Stream") {
		return stream.SendMsg(reply)
	}
	for played := 0; ; { // a message for each new book, until the client leaves
		l.mu.Lock()
		n, moved := len(l.books), l.moved
		l.mu.Unlock()
		for ; played < n; played++ {
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf(`books {id: "%s-0000000000-%d"}`, l.name, played))); err != nil {
				return err
			}
		}
		select {
		case <-moved:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func echo(stream grpc.ServerStream) error {
	for {
		f := &codec.Frame{}
		if err := stream.RecvMsg(f); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(f); err != nil {
			return err
		}
	}
}

func (l *library) answer(method string, request *codec.Frame) (*codec.Frame, error) {
	field := func(message, name string) string {
		m := fields(request, message)
		return m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(name))).String()
	}
	switch method {
	case muxtest.Method("Put"):
		m := fields(request, "PutRequest")
		book := m.Get(m.Descriptor().Fields().ByName("book")).Message()
		id := fmt.Sprintf("%s-0000000000-%d", l.name, len(l.books))
		l.books[id] = book.Get(book.Descriptor().Fields().ByName("title")).String()
		close(l.moved)
		l.moved = make(chan struct{})
		return muxtest.Bytes("Book", fmt.Sprintf("id: %q title: %q", id, l.title(l.books[id]))), nil
	case muxtest.Method("Get"):
		id := field("GetRequest", "book_id")
		title, ok := l.books[id]
		if !ok {
			return nil, status.Errorf(codes.NotFound, "no book %q", id)
		}
		return muxtest.Bytes("Book", fmt.Sprintf("id: %q title: %q labels {key: 'about' value: %q} labels {key: 'by' value: 'me'}", id, l.title(title), id)), nil
	case muxtest.Method("List"):
		text := ""
		for id, title := range l.books { // in whatever order
			text += fmt.Sprintf("books {id: %q title: %q}\n", id, title)
		}
		return muxtest.Bytes("ListResponse", text), nil
	}
	return &codec.Frame{}, nil
}

// recordedConn records what passes, as the client's leg.
type recordedConn struct {
	*grpc.ClientConn
	rec *capture.Recorder
}

func (c recordedConn) call(t testing.TB, method string, request *codec.Frame) (*codec.Frame, error) {
	t.Helper()
	_, leg := c.rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method(method), Client: true})
	leg.Request(request)
	reply := &codec.Frame{}
	err := c.Invoke(t.Context(), muxtest.Method(method), request, reply)
	if err == nil {
		leg.Reply(reply)
	}
	leg.End(err, nil)
	return reply, err
}

// stream opens a stream, whose messages next receives; it is open until the test ends.
func (c recordedConn) stream(t testing.TB, method string, request *codec.Frame) (next func() *codec.Frame) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	_, leg := c.rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method(method), Client: true})
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, muxtest.Method(method))
	require.NoError(t, err)
	leg.Request(request)
	require.NoError(t, s.SendMsg(request))
	require.NoError(t, s.CloseSend())
	return func() *codec.Frame {
		f := &codec.Frame{}
		require.NoError(t, s.RecvMsg(f))
		leg.Reply(f)
		return f
	}
}

// session puts, gets and lists books, and returns what it saw.
func session(t testing.TB, socket string, rec *capture.Recorder) (seen []string) {
	t.Helper()
	cc := recordedConn{muxtest.Connect(t, socket), rec}
	see := func(message string, f *codec.Frame, err error) {
		if err != nil {
			seen = append(seen, err.Error())
			return
		}
		m := dynamicpb.NewMessage(muxtest.Message(message))
		require.NoError(t, proto.Unmarshal(f.Bytes(), m))
		seen = append(seen, prototext.MarshalOptions{}.Format(m))
	}
	list := func() {
		f, err := cc.call(t, "List", muxtest.Frame(t, "ListRequest", `labels {key: "a" value: "1"} labels {key: "b" value: "2"}`))
		see("ListResponse", f, err)
	}
	events := cc.stream(t, "Stream", muxtest.Frame(t, "ListRequest", ""))
	list()
	for i := range 3 {
		book, err := cc.call(t, "Put", muxtest.Frame(t, "PutRequest", fmt.Sprintf("book {title: 'Tale %d'}", i)))
		require.NoError(t, err)
		see("Book", book, nil)
		see("ListResponse", events(), nil)
		id := fields(book, "Book").Get(muxtest.Message("Book").Fields().ByName("id")).String()
		got, err := cc.call(t, "Get", muxtest.Frame(t, "GetRequest", fmt.Sprintf("book_id: %q", id)))
		see("Book", got, err)
		list()
	}
	_, err := cc.call(t, "Get", muxtest.Frame(t, "GetRequest", `book_id: "nobody's"`))
	see("", nil, err)
	return seen
}

// serve serves a handler, and returns the socket.
func serve(t testing.TB, h muxtest.Handler) string {
	t.Helper()
	return muxtest.Serve(t, filepath.Join(muxtest.Dir(t), "s"), h).Path
}

// load writes recordings to a file, one after the other, and reads its calls.
func load(t testing.TB, redact bool, recs ...*capture.Recorder) []*replay.Call {
	t.Helper()
	var file bytes.Buffer
	for _, rec := range recs {
		rec.Close()
		f := rec.Follow(true)
		require.NoError(t, capture.WriteTo(&file, capture.JSONL, &capture.FileHeader{Version: capture.Version}, muxtest.Library,
			func(ev *capture.Event) error { return f.Next(context.Background(), ev) }))
	}
	assert.Equal(t, redact, bytes.Contains(file.Bytes(), []byte(`"redacted":true`)))
	r, err := capture.NewReader(&file)
	require.NoError(t, err)
	calls, err := replay.Load(r, "")
	require.NoError(t, err)
	return calls
}

// bare and stable say of the library that its names have no prefixes, and that no field differs in each run.
func bare(string) string                       { return "" }
func stable(protoreflect.FieldDescriptor) bool { return false }

// play replays calls and returns the changes as text.
func play(t testing.TB, cfg replay.Config) (replay.Summary, []string) {
	t.Helper()
	var changes []string
	cfg.Schema, cfg.Given, cfg.Bare = muxtest.Library, replay.LooksLikeID, bare
	if cfg.Volatile == nil {
		cfg.Volatile = stable
	}
	cfg.Report = func(res replay.Result) {
		for _, c := range res.Changes {
			changes = append(changes, filepath.Base(res.Call.Method)+" "+c.String())
		}
		if res.NotSent != "" {
			changes = append(changes, "not sent: "+res.NotSent)
		}
	}
	sum, err := replay.Run(t.Context(), cfg)
	require.NoError(t, err)
	return sum, changes
}

// fixtureHandler serves a fixture.
func fixtureHandler(f *replay.Fixture) muxtest.Handler {
	h := f.Handler()
	return func(_ string, stream grpc.ServerStream) error { return h(nil, stream) }
}
