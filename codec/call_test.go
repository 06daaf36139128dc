package codec_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/criproxy/criproxy/codec"
)

// doubling asks next, by another name, and with the request twice.
type doubling struct {
	codec.Caller
	calls int
}

func (d *doubling) Call(ctx context.Context, call *codec.Call) error {
	d.calls++
	return call.OnAs(ctx, d.Caller, call.Method+"Twice", codec.Concat([]*codec.Frame{call.Request.Ref(), call.Request.Ref()}))
}

// echoing replies with the request, as only gRPC's interface shows it.
type echoing struct {
	grpc.ClientConnInterface
	err error
}

func (e echoing) Invoke(_ context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	header, trailer := codec.MetadataOf(opts)
	*header, *trailer = metadata.Pairs("method", name), metadata.Pairs("end", "yes")
	if e.err != nil {
		return e.err
	}
	return codec.Decode(reply, args.(*codec.Frame).Ref())
}

func TestACallPassesCallersAndEndsAtAPlainConnection(t *testing.T) {
	last := &doubling{Caller: codec.CallerOf(echoing{})}
	conn := codec.Conn{Caller: &doubling{Caller: last}}
	var header, trailer metadata.MD
	var reply wrapperspb.StringValue
	require.NoError(t, conn.Invoke(t.Context(), "/Say", wrapperspb.String("x"), &reply, grpc.Header(&header), grpc.Trailer(&trailer)))
	assert.Equal(t, "x", reply.GetValue())
	assert.Equal(t, metadata.Pairs("method", "/SayTwiceTwice"), header)
	assert.Equal(t, metadata.Pairs("end", "yes"), trailer)
	assert.Equal(t, 1, last.calls)

	call := &codec.Call{Method: "/Say", Request: codec.NewFrame([]byte("\x0a\x01x"))}
	require.NoError(t, codec.CallerOf(conn).Call(t.Context(), call))
	assert.Equal(t, "/Say", call.Method)
	assert.Equal(t, "\x0a\x01x", string(call.Request.Bytes()), "the request is the caller's again")
	assert.Equal(t, "\x0a\x01x\x0a\x01x\x0a\x01x\x0a\x01x", string(call.Reply.Bytes()))
}

func TestACallThatFailsHasItsHeaderAndTrailer(t *testing.T) {
	broken := errors.New("broken")
	var header, trailer metadata.MD
	err := codec.Conn{Caller: codec.CallerOf(echoing{err: broken})}.Invoke(t.Context(), "/Say", codec.NewFrame(nil), &codec.Frame{}, grpc.Header(&header), grpc.Trailer(&trailer))
	require.ErrorIs(t, err, broken)
	assert.NotEmpty(t, header)
	assert.NotEmpty(t, trailer)
}

// repeating replies to the first message of a stream with that message.
type repeating struct{ codec.Caller }

func (repeating) Open(_ context.Context, _ *grpc.StreamDesc, method string, first *codec.Frame) (codec.Stream, error) {
	call := &codec.Call{Method: method, Header: metadata.Pairs("method", method), Trailer: metadata.Pairs("end", "yes")}
	return call.Ended([]*codec.Frame{first}, nil), nil
}

func TestAStreamOpensWithItsFirstMessage(t *testing.T) {
	var header, trailer metadata.MD
	cs, err := codec.Conn{Caller: repeating{}}.NewStream(t.Context(), &grpc.StreamDesc{}, "/Say", grpc.Header(&header), grpc.Trailer(&trailer))
	require.NoError(t, err)
	received := make(chan error, 1)
	var reply wrapperspb.StringValue
	go func() { received <- cs.RecvMsg(&reply) }() // it waits for the first message
	require.NoError(t, cs.SendMsg(wrapperspb.String("x")))
	require.NoError(t, <-received)
	assert.Equal(t, "x", reply.GetValue())
	assert.Equal(t, metadata.Pairs("method", "/Say"), header)
	assert.Equal(t, metadata.Pairs("end", "yes"), trailer)
	assert.ErrorContains(t, cs.SendMsg(wrapperspb.String("y")), "a second request")
}

func TestAStreamThatEndsBeforeItsFirstMessageIsNotOpened(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cs, err := codec.Conn{}.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/Say")
	require.NoError(t, err)
	cancel()
	assert.Equal(t, codes.Canceled, status.Code(cs.RecvMsg(&codec.Frame{})))
	assert.Equal(t, io.EOF, cs.SendMsg(&codec.Frame{}))
	assert.NoError(t, cs.CloseSend())
}
