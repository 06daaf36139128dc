package capture_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var nine = 9

var header = capture.FileHeader{
	Version: capture.Version, Program: "criproxy test", Created: time.Unix(1700000000, 5).UTC(), Listen: "/run/mux.sock",
	Backends: []capture.HeaderBackend{{Name: "primary", Address: "/run/a.sock"}, {Name: "beta.io", Address: "/run/b.sock", State: capture.Gone, Since: time.Unix(1699999999, 7).UTC(), Why: `it said "no" = never`, Pods: &nine}},
}

// session records a call to two backends, one that fails, one of criproxy's own,
// and a stream.
func session(t testing.TB, rec *capture.Recorder) {
	t.Helper()
	frame := func(message, text string) *codec.Frame { return muxtest.Frame(t, message, text) }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, client := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("Get"), Client: true, Metadata: metadata.Pairs(
		":authority", "elsewhere", "content-type", "application/grpc", "x-key", "one", "x-key", "two", "blob-bin", "\x00\xff")})
	client.Request(frame("GetRequest", `book_id: "beta.io__7f"`))
	_, back := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("Get"), Backend: "beta.io", Metadata: metadata.Pairs("x-key", "one")})
	back.Request(frame("GetRequest", `book_id: "7f"`))
	back.Header(metadata.Pairs("x-header", "é%\"\\", "some-bin", "\x01"))
	back.Reply(frame("Book", `id: "7f" title: "A \"tale\"" labels {key: "a" value: "b"}`))
	back.End(nil, metadata.Pairs("x-trailer", "t"))
	client.Header(metadata.Pairs("x-header", "é%\"\\"))
	client.Reply(frame("Book", `id: "beta.io__7f" title: "A \"tale\"" labels {key: "a" value: "b"}`))
	client.End(nil, nil)

	ctx, client = rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true})
	client.Request(frame("ListRequest", ``))
	_, a := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("List"), Backend: "primary"})
	_, b := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("List"), Backend: "beta.io"})
	b.Request(frame("ListRequest", ``))
	a.Request(frame("ListRequest", ``))
	b.Reply(frame("ListResponse", `books {id: "1"}`))
	a.Reply(frame("ListResponse", `books {id: "1"} books {id: "2"}`))
	a.End(nil, nil)
	b.End(nil, nil)
	client.Reply(frame("ListResponse", `books {id: "1"} books {id: "2"} books {id: "beta.io__1"}`))
	client.End(nil, nil)

	_, client = rec.Begin(t.Context(), capture.LegInfo{Method: "/other.Service/Unknown", Client: true})
	client.Request(codec.NewFrame([]byte("\x0a\x03abc\xff")))
	failed, err := status.New(codes.NotFound, "no é here: 100%\n").WithDetails(failure())
	require.NoError(t, err)
	client.End(failed.Err(), metadata.Pairs("x-trailer", "t"))

	_, own := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Version"), Backend: "primary"})
	own.Request(&codec.Frame{})
	own.End(context.DeadlineExceeded, nil)

	_, client = rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Chat"), Client: true})
	for range 3 {
		client.Request(frame("Page", `text: "there"`))
		client.Reply(frame("Page", `text: "and back"`))
	}
	client.Reply(codec.NewFrame(bytes.Repeat([]byte("\x12\x04text"), 30_000)))
}

// recorded returns all events of a recording.
func recorded(t testing.TB, rec *capture.Recorder) []capture.Event {
	t.Helper()
	rec.Close()
	return drain(t, rec.Follow(true))
}

func drain(t testing.TB, f *capture.Follower) []capture.Event {
	t.Helper()
	var all []capture.Event
	for {
		var ev capture.Event
		err := f.Next(t.Context(), &ev)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, ev)
	}
}

func encode(t testing.TB, f capture.Format, events []capture.Event) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, capture.WriteTo(&out, f, &header, muxtest.Library, source(events)))
	return out.Bytes()
}

func source(events []capture.Event) func(*capture.Event) error {
	return func(ev *capture.Event) error {
		if len(events) == 0 {
			return io.EOF
		}
		*ev, events = events[0], events[1:]
		return nil
	}
}

func decode(t testing.TB, file []byte) (capture.FileHeader, []capture.Event) {
	t.Helper()
	r, err := capture.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	var all []capture.Event
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) {
			return *r.Header(), all
		}
		require.NoError(t, err)
		all = append(all, ev)
	}
}

// there returns the events that a follower gets without waiting.
func there(f *capture.Follower) (all []capture.Event) {
	for ev := (capture.Event{}); f.TryNext(&ev); {
		all = append(all, ev)
	}
	return all
}
