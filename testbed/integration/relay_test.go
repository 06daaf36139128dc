package integration

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/codec"
)

// maxMessage is more than any message here.
const maxMessage = 64 << 20

// A handler answers the calls of a server that knows no service.
type handler func(method string, stream grpc.ServerStream) error

// serve starts a server of frames that ends with the test, and returns its socket.
func serve(t testing.TB, h handler) string {
	t.Helper()
	socket := filepath.Join(folder(t), "server.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(codec.Raw), grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			return h(method, stream)
		}),
	)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-ended)
	})
	return socket
}

// A relay stands before a runtime, passes every call on as it is, and keeps what passed.
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
	outcome  // what the runtime answered
}

// said returns what the client and the runtime said.
func (p *passed) said() (requests []string, answer outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests), p.outcome
}

// newRelay starts a relay before the socket of a runtime. Calls for which refuse returns an error are answered
// with that; nil refuses none.
func newRelay(t testing.TB, runtime string, refuse func(method string) error) *relay {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+runtime,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(maxMessage)))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	r := &relay{}
	r.socket = serve(t, func(method string, stream grpc.ServerStream) error {
		if refuse != nil {
			if err := refuse(method); err != nil {
				return err
			}
		}
		return r.pass(cc, method, stream)
	})
	return r
}

// pass passes one call.
func (r *relay) pass(cc *grpc.ClientConn, method string, stream grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	p := &passed{method: method, metadata: md}
	r.mu.Lock()
	r.calls = append(r.calls, p)
	r.mu.Unlock()

	// The first message is taken before the runtime is asked: it may answer before it reads.
	first := &codec.Frame{}
	if err := stream.RecvMsg(first); err != nil {
		return err
	}
	p.mu.Lock()
	p.requests = append(p.requests, string(first.Bytes()))
	p.mu.Unlock()

	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(stream.Context(), forwarded(md)))
	defer cancel()
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // ends with the client's stream
		for f := first; ; {
			if cs.SendMsg(f) != nil {
				return // the answer has come
			}
			f = &codec.Frame{}
			if err := stream.RecvMsg(f); err != nil {
				cs.CloseSend()
				return
			}
			p.mu.Lock()
			p.requests = append(p.requests, string(f.Bytes()))
			p.mu.Unlock()
		}
	}()
	if header, err := cs.Header(); err == nil && header != nil {
		p.mu.Lock()
		p.header = header
		p.mu.Unlock()
		if err := stream.SendHeader(forwarded(header)); err != nil {
			return err
		}
	}
	for {
		f := &codec.Frame{}
		err := cs.RecvMsg(f)
		p.mu.Lock()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			p.status, p.trailer = status.Convert(err), cs.Trailer()
			p.mu.Unlock()
			stream.SetTrailer(p.trailer)
			return err
		}
		p.replies = append(p.replies, string(f.Bytes()))
		p.mu.Unlock()
		if err := stream.SendMsg(f); err != nil {
			return err
		}
	}
}

// forwarded is md without what is the connection's.
func forwarded(md metadata.MD) metadata.MD {
	md = md.Copy()
	for _, key := range []string{":authority", "content-type", "user-agent", "grpc-accept-encoding"} {
		md.Delete(key)
	}
	return md
}

// mark is the metadata by which a test finds its own calls again: a proxy makes calls of its own as well.
const mark = "x-integration-test"

var marks atomic.Int64

// marked returns a context whose calls a relay finds by the key.
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

// An outcome is all that a client can see of a call.
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

// call makes a call of any kind with one request, and returns all that came of it. It is open ended when enough
// is not nil: it is cancelled when enough says that there are enough replies.
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
