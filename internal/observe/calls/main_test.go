package calls_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

var update = flag.Bool("update", false, "write what is printed now to testdata")

func TestMain(m *testing.M) {
	time.Local = time.UTC // clocks in transcripts
	flag.Parse()
	goleak.VerifyTestMain(m)
}

var order = []string{"primary", "beta.io"}

// clock is the time of the first call of a conversation.
var clock = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// conversation returns the events of a few calls, one every millisecond.
func conversation(t testing.TB) []capture.Event {
	t.Helper()
	rec := capture.NewRecorder(capture.Config{})
	frame := func(message, text string) *codec.Frame { return muxtest.Frame(t, message, text) }
	kubelet := capture.Peer{PID: 812, Name: "kubelet"}
	client := func(method string, md metadata.MD) (context.Context, *capture.Leg) {
		return rec.Begin(context.Background(), capture.LegInfo{Method: muxtest.Method(method), Client: true, Peer: kubelet, Metadata: md})
	}
	back := func(ctx context.Context, method, name string) *capture.Leg {
		_, leg := rec.Begin(ctx, capture.LegInfo{Method: method, Backend: name})
		return leg
	}

	// A call with an id that the backend knows under another name, in an older version of the API.
	ctx, front := client("Put", metadata.Pairs(":authority", "localhost", "traceparent", "00-0a-b7-01"))
	front.Request(frame("PutRequest", `book {id: "beta.io__7f" title: "Tale"} shelf: "vm" labels {key: "backend" value: "beta.io"}`))
	one := back(ctx, "/library.v0.Library/Put", "beta.io")
	one.Request(frame("PutRequest", `book {id: "7f" title: "Tale"} labels {key: "backend" value: "beta.io"}`))
	one.Reply(frame("Book", `id: "7f" title: "Tale"`))
	one.End(nil, nil)
	front.Reply(frame("Book", `id: "beta.io__7f" title: "Tale"`))
	front.End(nil, metadata.Pairs("x-trailer", "t"))

	// A list from both backends.
	ctx, front = client("List", nil)
	front.Request(frame("ListRequest", ""))
	a, b := back(ctx, muxtest.Method("List"), "primary"), back(ctx, muxtest.Method("List"), "beta.io")
	a.Request(frame("ListRequest", ""))
	b.Request(frame("ListRequest", ""))
	b.Reply(frame("ListResponse", `books {id: "7f" title: "Tale"}`))
	b.End(nil, nil)
	a.Reply(frame("ListResponse", `books {id: "1"}`))
	a.End(nil, nil)
	front.Reply(frame("ListResponse", `books {id: "1"} books {id: "beta.io__7f" title: "Tale"}`))
	front.End(nil, nil)

	// A call that passes unchanged, and fails.
	ctx, front = client("Get", nil)
	front.Request(frame("GetRequest", `book_id: "9"`))
	a = back(ctx, muxtest.Method("Get"), "primary")
	a.Request(frame("GetRequest", `book_id: "9"`))
	gone := status.Error(codes.NotFound, "no book \"9\"\nhere; or #there")
	a.End(gone, nil)
	front.End(gone, nil)

	// A call that is answered without a backend, and belongs to a service that no schema describes.
	_, front = rec.Begin(context.Background(), capture.LegInfo{Method: "/other.Service/Unknown", Client: true})
	front.Request(codec.NewFrame([]byte("\x0a\x03abc\x10\x07")))
	front.End(status.Error(codes.Unimplemented, ""), nil)

	// A call of criproxy's own, and a stream that is still open.
	own := back(context.Background(), muxtest.Method("Version"), "primary")
	own.Request(&codec.Frame{})
	own.End(nil, nil)
	_, front = client("Stream", nil)
	front.Request(frame("ListRequest", ""))
	front.Reply(frame("ListResponse", `books {id: "beta.io__7f"}`))
	front.Reply(frame("ListResponse", `books {id: "1"}`))

	rec.Close()
	var all []capture.Event
	for f := rec.Follow(true); ; {
		var ev capture.Event
		if f.Next(t.Context(), &ev) != nil {
			return all
		}
		ev.Mono = time.Duration(len(all)) * time.Millisecond
		ev.Time = clock.Add(ev.Mono)
		all = append(all, ev)
	}
}

// names is a Namer that treats books as containers.
type names map[string]calls.About

func (n names) Message(md protoreflect.MessageDescriptor, payload []byte) (about calls.About, items []calls.About) {
	m := dynamicpb.NewMessage(md)
	_ = proto.Unmarshal(payload, m) // a malformed message is about nothing
	book := func(m protoreflect.Message) (a calls.About) {
		fields := m.Descriptor().Fields()
		for _, name := range []protoreflect.Name{"id", "book_id"} {
			if fd := fields.ByName(name); fd != nil && m.Get(fd).String() != "" {
				a.IDs = append(a.IDs, m.Get(fd).String())
			}
		}
		if fd := fields.ByName("title"); fd != nil {
			a.Pod = m.Get(fd).String()
		}
		if a.Pod != "" {
			a.Namespace = "shelf"
		}
		return a
	}
	fields := md.Fields()
	if fd := fields.ByName("books"); fd != nil {
		for i := range m.Get(fd).List().Len() {
			items = append(items, book(m.Get(fd).List().Get(i).Message()))
		}
		return about, items
	}
	if fd := fields.ByName("book"); fd != nil {
		return book(m.Get(fd).Message()), nil
	}
	return book(m), nil
}

func (n names) Bare(id string) string {
	_, bare, _ := strings.Cut(id, "__")
	return bare
}

func (n names) Learn(a calls.About) { n[a.IDs[0]] = a }

func (n names) Complete(a calls.About) calls.About {
	if len(a.IDs) > 0 && a.Pod == "" {
		a.Namespace, a.Pod = n[a.IDs[0]].Namespace, n[a.IDs[0]].Pod
	}
	return a
}

// assembled assembles the calls of the conversation: those that have ended, and then those under way.
func assembled(t testing.TB) (ended, underWay []*calls.Call) {
	t.Helper()
	a := calls.NewAssembler(muxtest.Library, names{})
	for _, ev := range conversation(t) {
		if c, what := a.Add(&ev); what == calls.Done {
			ended = append(ended, c)
		}
	}
	return ended, a.UnderWay()
}

// golden asserts that got equals a file in testdata.
func golden(t *testing.T, section string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "conversation.txtar")
	archive, err := txtar.ParseFile(path)
	if *update && os.IsNotExist(err) {
		archive, err = &txtar.Archive{Comment: []byte("# How the conversation of main_test.go is shown. go test ./inspect -update writes it.\n")}, nil
	}
	require.NoError(t, err)
	for i, f := range archive.Files {
		if f.Name != section {
			continue
		}
		if !*update {
			assert.Equal(t, string(f.Data), string(got))
			return
		}
		archive.Files = append(archive.Files[:i], archive.Files[i+1:]...)
		break
	}
	require.True(t, *update, "no section %s in %s", section, path)
	archive.Files = append(archive.Files, txtar.File{Name: section, Data: bytes.Clone(got)})
	require.NoError(t, os.WriteFile(path, txtar.Format(archive), 0o644))
}
