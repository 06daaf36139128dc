package integration

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/testbed"
)

// maxMessage is longer than any message here.
const maxMessage = 64 << 20

// A relay is in front of a runtime and records calls.
type relay struct {
	socket string

	mu    sync.Mutex
	calls []*passed
}

// passed is one call, as the runtime saw and answered it.
type passed struct {
	method   string
	metadata metadata.MD

	mu       sync.Mutex
	requests []string
	outcome  // the runtime's answer
}

// said returns the messages of the client and of the runtime.
func (p *passed) said() (requests []string, answer outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests), p.outcome
}

// newRelay starts a relay in front of the socket of a runtime. It answers calls for which refuse returns an error with
// that error; a nil refuse refuses none.
func newRelay(t testing.TB, runtime string, refuse func(method string) error) *relay {
	t.Helper()
	r := &relay{}
	r.socket = testbed.NewRelay(t, runtime, func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if refuse != nil {
			if err := refuse(info.FullMethod); err != nil {
				return err
			}
		}
		md, _ := metadata.FromIncomingContext(stream.Context())
		p := &passed{method: info.FullMethod, metadata: md}
		r.mu.Lock()
		r.calls = append(r.calls, p)
		r.mu.Unlock()
		err := handler(srv, &recorded{ServerStream: stream, passed: p})
		p.mu.Lock()
		defer p.mu.Unlock()
		p.status = status.Convert(err)
		return err
	})
	return r
}

// recorded is a client's stream that records its messages.
type recorded struct {
	grpc.ServerStream
	passed *passed
}

func (s *recorded) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.passed.mu.Lock()
		defer s.passed.mu.Unlock()
		s.passed.requests = append(s.passed.requests, string(m.(*codec.Frame).Bytes()))
	}
	return err
}

func (s *recorded) SendMsg(m any) error {
	s.passed.mu.Lock()
	s.passed.replies = append(s.passed.replies, string(m.(*codec.Frame).Bytes()))
	s.passed.mu.Unlock()
	return s.ServerStream.SendMsg(m)
}

func (s *recorded) SendHeader(md metadata.MD) error {
	s.passed.mu.Lock()
	s.passed.header = md
	s.passed.mu.Unlock()
	return s.ServerStream.SendHeader(md)
}

func (s *recorded) SetTrailer(md metadata.MD) {
	s.passed.mu.Lock()
	s.passed.trailer = md
	s.passed.mu.Unlock()
	s.ServerStream.SetTrailer(md)
}

// forwarded returns md without keys that belong to the connection, and without what criproxy adds.
func forwarded(md metadata.MD) metadata.MD {
	md = md.Copy()
	for _, key := range []string{":authority", "content-type", "user-agent", "grpc-accept-encoding", "criproxy-hop"} {
		md.Delete(key)
	}
	return md
}

// mark is the metadata key by which a test finds its own calls, because a proxy makes calls of its own as well.
const mark = "x-integration-test"

var marks atomic.Int64

// marked returns a context whose calls a relay can find by key.
func marked(ctx context.Context) (marked context.Context, key string) {
	key = strconv.FormatInt(marks.Add(1), 10)
	return metadata.AppendToOutgoingContext(ctx, mark, key), key
}

// find returns the calls that were marked with key.
func (r *relay) find(key string) []*passed {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*passed
	for _, p := range r.calls {
		if m := p.metadata[mark]; len(m) == 1 && m[0] == key {
			found = append(found, p)
		}
	}
	return found
}

// An outcome is everything that a client can see of a call.
type outcome struct {
	replies         []string
	header, trailer metadata.MD
	status          *status.Status
}

// raw returns a connection of frames to a socket, closed with the test.
func raw(t testing.TB, socket string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(maxMessage)))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// call makes a call of any kind with one request, and returns its outcome. If enough is not nil, call cancels the call
// when enough reports that there are enough replies.
func call(t testing.TB, ctx context.Context, cc *grpc.ClientConn, method string, request []byte, enough func(replies []string) bool) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	require.NoError(t, err)
	if err := cs.SendMsg(codec.NewFrame(request)); err != nil {
		require.ErrorIs(t, err, io.EOF)
	}
	require.NoError(t, cs.CloseSend())
	var o outcome
	o.header, _ = cs.Header()
	for {
		f := &codec.Frame{}
		err := cs.RecvMsg(f)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			o.status, o.trailer = status.Convert(err), cs.Trailer()
			return o
		}
		o.replies = append(o.replies, string(f.Bytes()))
		if enough != nil && enough(o.replies) {
			cancel()
		}
	}
}

// marshal encodes a message.
func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}
