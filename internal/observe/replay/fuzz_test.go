package replay_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// empty answers each call with an empty reply.
type empty struct{}

func (empty) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	return codec.Decode(reply, &codec.Frame{})
}

func (empty) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no stream")
}

// FuzzCapture holds that a capture of unknown origin can be played, or is
// refused with a reason.
func FuzzCapture(f *testing.F) {
	rec := capture.NewRecorder(capture.Config{})
	for _, c := range []struct{ method, request, reply, message string }{
		{"Put", `book {id: "7f"}`, `id: "8f" title: "T"`, "Book"},
		{"List", ``, `books {id: "8f"}`, "ListResponse"},
	} {
		_, leg := rec.Begin(context.Background(), capture.LegInfo{Method: muxtest.Method(c.method), Client: true})
		leg.Request(muxtest.Frame(f, c.method+"Request", c.request))
		leg.Reply(muxtest.Frame(f, c.message, c.reply))
		leg.End(nil, nil)
	}
	rec.Close()
	for _, format := range capture.Formats {
		var file bytes.Buffer
		header, follower := capture.FileHeader{Version: capture.Version, Program: "p", Created: time.Unix(1700000000, 0).UTC()}, rec.Follow(true)
		require.NoError(f, capture.WriteTo(&file, format, &header, nil, func(ev *capture.Event) error { return follower.Next(context.Background(), ev) }))
		f.Add(file.Bytes())
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		calls, err := replay.Load(r, "")
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		sum, err := replay.Run(ctx, replay.Config{Calls: calls, Conn: empty{}, Schema: muxtest.Library, Settle: time.Millisecond,
			Given: replay.LooksLikeID, Bare: bare, Volatile: stable, Report: func(replay.Result) {}})
		require.NoError(t, err)
		require.Equal(t, len(calls), sum.Same+sum.Different+sum.NotSent)
		replay.NewFixture(replay.FixtureConfig{Calls: calls, Schema: muxtest.Library}).Left()
	})
}
