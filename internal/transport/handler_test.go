package transport_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

func TestASecondMessageMayFollowTheOnlyOne(t *testing.T) {
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		transport.Unary(ss.Context())
		for _, text := range []string{"first", "second", "third"} {
			if err := ss.SendMsg(codec.NewFrame([]byte(text))); err != nil {
				return err
			}
		}
		return nil
	})
	cs, err := newClient(t, transport.ClientConfig{Dial: dialer(l)}).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/s.S/M")
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(&codec.Frame{}))
	for _, want := range []string{"first", "second", "third"} {
		var f codec.Frame
		require.NoError(t, cs.RecvMsg(&f))
		assert.Equal(t, want, string(f.Bytes()))
	}
}

func TestAFailureAfterTheOnlyMessageIsSent(t *testing.T) {
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		transport.Unary(ss.Context())
		if err := ss.SendMsg(codec.NewFrame([]byte("never sent"))); err != nil {
			return err
		}
		return status.Error(codes.Aborted, "after all")
	})
	assert.Equal(t, codes.Aborted, status.Code(invoke(t, newClient(t, transport.ClientConfig{Dial: dialer(l)}))))
}

func TestAHandlerFindsGRPCsUsualContext(t *testing.T) {
	order := make(chan string, 2)
	note := func(name string) grpc.StreamServerInterceptor {
		return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			order <- name + " " + info.FullMethod
			return h(srv, ss)
		}
	}
	l := servedAs(t, transport.ServerConfig{
		Interceptors: []grpc.StreamServerInterceptor{note("outer"), note("inner")},
		Handler: func(srv any, ss grpc.ServerStream) error {
			ctx := ss.Context()
			p, _ := peer.FromContext(ctx)
			name, _ := grpc.Method(ctx)
			assert.Nil(t, srv)
			assert.NotNil(t, p.Addr)
			assert.Equal(t, "/s.S/M", name)
			assert.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-by", "context")))
			assert.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("x-at", "the end")))
			assert.NoError(t, ss.SendHeader(metadata.Pairs("x-more", "2")))
			assert.Error(t, ss.SendHeader(nil), "a second time")
			assert.Error(t, ss.SetHeader(metadata.Pairs("x", "too late")))
			return echo(srv, ss)
		},
	})
	var header, trailer metadata.MD
	require.NoError(t, invoke(t, newClient(t, transport.ClientConfig{Dial: dialer(l)}), grpc.Header(&header), grpc.Trailer(&trailer)))
	assert.Equal(t, "outer /s.S/M", <-order)
	assert.Equal(t, "inner /s.S/M", <-order)
	assert.Equal(t, []string{"context"}, header["x-by"])
	assert.Equal(t, []string{"2"}, header["x-more"])
	assert.Equal(t, []string{"the end"}, trailer["x-at"])
}

// Frames under way for calls that the client has canceled are no mistake of the server.
func TestCancellingCallsByTheHundredKeepsTheConnection(t *testing.T) {
	for server, s := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
		t.Run(server, func(t *testing.T) {
			l := listen(t)
			s.serve(t, l, answer)
			var dials atomic.Int32
			c := newClient(t, transport.ClientConfig{Dial: func(ctx context.Context) (net.Conn, error) {
				dials.Add(1)
				return dialer(l)(ctx)
			}})
			for range 5 {
				ctx, cancel := context.WithCancel(t.Context())
				var replies atomic.Int64
				var all sync.WaitGroup
				for range 300 {
					all.Go(func() {
						cs, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/bench/1000x1000")
						if err != nil || cs.SendMsg(&codec.Frame{}) != nil {
							return
						}
						for cs.RecvMsg(&codec.Frame{}) == nil {
							replies.Add(1)
						}
					})
				}
				require.Eventually(t, func() bool { return replies.Load() > 1000 }, patience, time.Millisecond)
				cancel()
				all.Wait()
			}
			assert.NoError(t, c.Invoke(t.Context(), "/bench/1x1", &codec.Frame{}, &codec.Frame{}))
			assert.EqualValues(t, 1, dials.Load())
		})
	}
}

// A client that resets calls, as kubelet does at its timeouts, is not an attacker.
func TestAClientMayCancelThousandsOfCalls(t *testing.T) {
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		<-ss.Context().Done()
		return ss.Context().Err()
	})
	p := rawClient(t, l)
	for i := range uint32(4000) {
		p.headers(2*i+1, true, p.request())
	}
	require.NoError(t, p.say())
	for i := range uint32(4000) {
		_ = p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
	}
	_ = p.framer.WritePing(false, [8]byte{1})
	require.NoError(t, p.say())
	assert.NotNil(t, p.until(func(f http2.Frame) bool { _, ok := f.(*http2.PingFrame); return ok }), "the connection was closed")
}
