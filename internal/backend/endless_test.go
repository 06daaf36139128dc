package backend_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// endless is a backend that has no List, and whose Stream sends the same message again
// and again.
type endless struct {
	message []byte
	sent    int
	ended   context.Context
}

func (e *endless) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unimplemented, "only streams")
}

func (e *endless) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	e.ended = ctx
	return &endlessStream{e, ctx}, nil
}

type endlessStream struct {
	*endless
	ctx context.Context
}

func (s *endlessStream) SendMsg(any) error            { return nil }
func (s *endlessStream) CloseSend() error             { return nil }
func (s *endlessStream) Header() (metadata.MD, error) { return nil, nil }
func (s *endlessStream) Trailer() metadata.MD         { return nil }
func (s *endlessStream) Context() context.Context     { return s.ctx }

func (s *endlessStream) RecvMsg(m any) error {
	s.sent++
	return codec.Decode(m, codec.NewFrame(s.message)) // always the same bytes, so that the test takes little memory
}

func TestAListThatIsStreamedWithoutAnEndFails(t *testing.T) {
	for name, c := range map[string]struct {
		message  []byte
		messages int
	}{
		"of much":          {protowire.AppendBytes([]byte{0x7a}, make([]byte, 1<<20)), 256}, // in a field that the schema lacks
		"of many messages": {[]byte{}, 1<<20 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			spec := muxtest.LibraryProfile(t).Known
			e := &endless{message: c.message}
			bridged, err := backend.Bridge(codec.CallerOf(e), spec.Lists, muxtest.Library, muxtest.Package)
			require.NoError(t, err)
			err = bridged.Call(t.Context(), &codec.Call{Method: muxtest.Method("List"), Request: &codec.Frame{}})
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			assert.ErrorContains(t, err, "the backend streams a list of more than 268435456 bytes")
			assert.Equal(t, c.messages, e.sent)
			assert.Error(t, e.ended.Err(), "the call to the backend is cancelled")
		})
	}
}
