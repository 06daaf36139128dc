package dial

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// A Loss is a field of metadata that does not reach the other side as it came.
type Loss = transport.Loss

// The reasons of a Loss: a byte that the next hop refuses, or the size of the header list.
const (
	LossBytes = transport.LossBytes
	LossSize  = transport.LossSize
)

// A link carries the calls of a Conn to its backend: gRPC's own client, or ours. It connects again by itself after a failure, and
// after the end of a connection when it is called or Connect is.
type link interface {
	codec.Caller
	Connect()
	GetState() connectivity.State
	WaitForStateChange(ctx context.Context, from connectivity.State) bool
	ResetConnectBackoff()
	Close() error
}

// link makes the link of c: with gRPC's own client if the configuration asks for it or there are
// several servers to choose among, otherwise with ours.
func (c *Conn) link(cfg Config) (link, error) {
	if cfg.GRPC || len(cfg.More) > 0 || strings.HasPrefix(cfg.Address, transport.DNSScheme) {
		return c.balanced(cfg)
	}
	network, err := transport.Network(cfg.Address)
	if err != nil {
		return nil, err
	}
	authority := localhost
	if cfg.Credentials != nil && network != transport.Unix {
		authority = cfg.Address
	}
	client := transport.ClientConfig{
		Dial:      func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, cfg.Address) },
		Authority: authority, UserAgent: "criproxy", Via: cfg.Via, MaxMessage: c.maxMessage, Budget: cfg.Budget, Lost: cfg.Lost,
	}
	if creds := cfg.Credentials; creds != nil {
		client.Handshake = func(ctx context.Context, nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
			return creds.ClientHandshake(ctx, authority, nc)
		}
	}
	return transport.NewClient(client), nil
}

// localhost is the :authority for backends without a host name. Servers that are not grpc-go
// refuse a socket path as :authority: https://github.com/kubernetes/kubernetes/pull/123463
const localhost = "localhost"

// balanced makes a link with gRPC's client, and its resolvers and policies.
func (c *Conn) balanced(cfg Config) (link, error) {
	target, opts, err := targetOf(cfg)
	if err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient(target, append(opts,
		grpc.WithContextDialer(c.dial),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec.Raw),
			grpc.MaxCallRecvMsgSize(c.maxMessage),
			grpc.MaxCallSendMsgSize(c.maxMessage),
		),
		grpc.WithConnectParams(transport.Reconnect),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	)...)
	if err != nil {
		return nil, err
	}
	return &balanced{cc, codec.CallerOf(cc), cfg.Budget, cfg.Lost, cfg.Via}, nil
}

// balanced is a link to one or several servers, any of which can answer a call. gRPC's client does not
// say how long a message is before it has read the whole message, so balanced reserves the memory
// only then.
type balanced struct {
	*grpc.ClientConn
	calls  codec.Caller // of the ClientConn
	budget Budget
	lost   func(transport.Loss) // or nil
	via    string
}

// outgoing returns a context with the metadata for the backend: without what grpc-go would refuse, and the call with it.
func (b *balanced) outgoing(ctx context.Context, method string) context.Context {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, transport.Printable(md, func(name string) {
			if b.lost != nil {
				b.lost(transport.Loss{Method: method, Field: name, Why: transport.LossBytes})
			}
		}))
	}
	if b.via == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, transport.ViaField, b.via)
}

// Call makes a unary call, and counts the reply: gRPC's client has it in one piece by then.
func (b *balanced) Call(ctx context.Context, call *codec.Call) error {
	if err := b.calls.Call(b.outgoing(ctx, call.Method), call); err != nil {
		return err
	}
	return transport.Count(ctx, b.budget, call.Reply)
}

// Open opens a stream whose messages are counted.
func (b *balanced) Open(ctx context.Context, desc *grpc.StreamDesc, method string, first *codec.Frame) (codec.Stream, error) {
	s, err := b.calls.Open(b.outgoing(ctx, method), desc, method, first)
	if err != nil {
		return nil, err
	}
	return &balancedStream{s, b, ctx}, nil
}

// A balancedStream counts the messages that it receives.
type balancedStream struct {
	codec.Stream
	link *balanced
	ctx  context.Context // the caller's: that of the stream has the server as its peer
}

func (s *balancedStream) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if err == nil {
		err = transport.Count(s.ctx, s.link.budget, f)
	}
	return f, err
}
