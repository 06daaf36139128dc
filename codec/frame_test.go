package codec_test

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
)

const large = 2000 // bytes, enough for a pool

func assertSameMemory(t testing.TB, want, got []byte) {
	t.Helper()
	require.Len(t, got, len(want))
	assert.Same(t, unsafe.SliceData(want), unsafe.SliceData(got), "the bytes were copied")
}

func TestAFrameIsSentAndReceivedWithoutCopying(t *testing.T) {
	b := []byte("hello")
	f := codec.NewFrame(b)
	assertSameMemory(t, b, f.Bytes())

	data, err := codec.Raw.Marshal(f)
	require.NoError(t, err)
	require.Len(t, data, 1)
	assertSameMemory(t, b, data[0].ReadOnlyData())

	var got codec.Frame
	require.NoError(t, codec.Raw.Unmarshal(data, &got))
	assertSameMemory(t, b, got.Bytes())
	assert.Equal(t, 5, got.Len())
}

func TestTheZeroFrameIsTheEmptyMessage(t *testing.T) {
	var f codec.Frame
	assert.Zero(t, f.Len())
	assert.Empty(t, f.Bytes())
	f.Free()
	data, err := codec.Raw.Marshal(codec.NewFrame([]byte{}))
	require.NoError(t, err)
	assert.Zero(t, data.Len())
	assert.Empty(t, codec.Concat(nil).Bytes())
}

func TestABufferGoesBackWhenItsLastFrameIsFreed(t *testing.T) {
	p := newPool(t)
	f := p.frame('a', large)
	second := f.Ref()
	f.Free()
	assert.Zero(t, f.Len(), "a freed frame is empty")
	assert.Equal(t, 1, p.Out())
	assert.Equal(t, bytes.Repeat([]byte("a"), large), second.Bytes())
	second.Free()
	assert.Zero(t, p.Out())
	second.Free() // freeing it again does nothing
}

func TestConcatJoinsWithoutCopyingAndTakesOver(t *testing.T) {
	p := newPool(t)
	a, b := p.frame('a', large), p.frame('b', large)
	aBytes, bBytes := a.Bytes(), b.Bytes()
	all := codec.Concat([]*codec.Frame{a, {}, b})
	assert.Equal(t, 2*large, all.Len())
	assert.Zero(t, a.Len())
	a.Free() // does nothing: Concat has taken its bytes

	data, err := codec.Raw.Marshal(all)
	require.NoError(t, err)
	require.Len(t, data, 2)
	assertSameMemory(t, aBytes, data[0].ReadOnlyData())
	assertSameMemory(t, bBytes, data[1].ReadOnlyData())
	data.Free()
	all.Free()
	assert.Zero(t, p.Out())
}

func TestBytesJoinsThePiecesOnce(t *testing.T) {
	p := newPool(t)
	f := codec.Concat([]*codec.Frame{p.frame('a', large), p.frame('b', large)})
	other := f.Ref()
	want := append(bytes.Repeat([]byte("a"), large), bytes.Repeat([]byte("b"), large)...)
	got := f.Bytes()
	assert.Equal(t, want, got)
	assertSameMemory(t, got, f.Bytes())
	assert.Equal(t, 2, p.Out(), "the other frame still holds the pieces")
	assert.Equal(t, want, other.Bytes())
	assert.Zero(t, p.Out(), "the pieces go back when both frames have joined them")
	f.Free()
	other.Free()
}

func TestHeadReturnsTheFirstPieces(t *testing.T) {
	p := newPool(t)
	f := codec.Concat([]*codec.Frame{p.frame('a', large), p.frame('b', large), p.frame('c', large)})
	for n, want := range map[int]int{-1: 0, 0: 0, 1: large, large: large, large + 1: 2 * large, 9 * large: 3 * large} {
		head := codec.FrameOfBuffers(buffers.Head(f.Buffers(), n))
		assert.Equal(t, want, head.Len(), n)
		head.Free()
	}
	head := codec.FrameOfBuffers(buffers.Head(f.Buffers(), large))
	f.Free()
	assert.Equal(t, 1, p.Out(), "the rest has gone back")
	assert.Equal(t, bytes.Repeat([]byte("a"), large), head.Bytes())
	head.Free()
	assert.Zero(t, p.Out())
}

func TestDeliverTakesTheFrameEvenIfItFails(t *testing.T) {
	p := newPool(t)
	require.NoError(t, codec.Decode(&emptypb.Empty{}, p.frame(0xff, large)), "it does not parse the message")
	assert.Zero(t, p.Out())
	require.Error(t, codec.Decode(&testpb.SimpleRequest{}, p.frame(0xff, large)), "this is no message")
	assert.Zero(t, p.Out())
	require.Error(t, codec.Decode("not a message", p.frame('a', large)))
	assert.Zero(t, p.Out())
	var f codec.Frame
	require.NoError(t, codec.Decode(&f, p.frame('a', large)))
	require.NoError(t, codec.Decode(&f, &f), "a frame may be delivered to itself")
	assert.Equal(t, large, f.Len())
	f.Free()
	assert.Zero(t, p.Out())
}

func TestOnlyFramesAndMessagesAreAccepted(t *testing.T) {
	_, err := codec.Raw.Marshal("text")
	assert.EqualError(t, err, "cannot send a string: neither a *codec.Frame nor a protobuf message")
	err = codec.Raw.Unmarshal(nil, "text")
	assert.EqualError(t, err, "cannot receive into a string: neither a *codec.Frame nor a protobuf message")
	err = codec.Raw.Unmarshal(mem.BufferSlice{mem.SliceBuffer("\xff")}, &testpb.SimpleRequest{})
	assert.ErrorContains(t, err, "decoding a grpc.testing.SimpleRequest: ")
	_, err = codec.Raw.Marshal(&testpb.EchoStatus{Message: "\xff"})
	assert.ErrorContains(t, err, "encoding a grpc.testing.EchoStatus: ")
}

func TestMessagesAndFramesAreConverted(t *testing.T) {
	f, err := codec.FrameOf(&testpb.EchoStatus{Code: 3, Message: "hello"})
	require.NoError(t, err)
	same, err := codec.FrameOf(f)
	require.NoError(t, err)
	assert.Same(t, f, same)

	var pumped emptypb.Empty
	b := bytes.Clone(f.Bytes())
	require.NoError(t, codec.Decode(&pumped, f))
	assert.Equal(t, b, []byte(pumped.ProtoReflect().GetUnknown()))
	back, err := codec.FrameOf(&pumped)
	require.NoError(t, err)
	assertSameMemory(t, pumped.ProtoReflect().GetUnknown(), back.Bytes())

	got := &testpb.EchoStatus{Code: 7}
	require.NoError(t, codec.Decode(got, back))
	assert.True(t, proto.Equal(&testpb.EchoStatus{Code: 3, Message: "hello"}, got))
}
