package director

import (
	"context"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// A Director is a connection to several backends as if they were one. It
// chooses on the first message of each call. It is safe for concurrent use.
type Director struct {
	table  *table
	front  grpc.ClientConnInterface // what clients reach: the versions in front of the director
	tracer Tracer
}

// New returns a director for cfg. Its error names every mistake in the profile
// and the backends.
func New(cfg Config) (*Director, error) {
	t, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	d := &Director{table: t, tracer: cfg.Tracer}
	var inner grpc.ClientConnInterface = d
	if cfg.Around != nil {
		inner = cfg.Around(d)
	}
	d.front = t.versions.front(inner)
	return d, nil
}

// Invoke does a unary call: on one backend, or on all and merges their replies.
// args and reply are *codec.Frame or protobuf messages.
func (d *Director) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	m := d.table.methods[name]
	if m == nil {
		return d.table.backends[0].Conn.Invoke(ctx, name, args, reply, opts...)
	}
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	to, err := d.table.route(ctx, m, request)
	if err != nil {
		return failed(m, err)
	}
	var answer *codec.Frame
	switch to.who {
	case one:
		answer, err = d.table.unicast(ctx, m, to.backend, request, opts)
	case all:
		answer, err = d.table.fanout(ctx, m, request, opts)
	case firstOf:
		answer, err = d.table.firstOf(ctx, m, request, opts)
	case nobody:
		answer = &codec.Frame{}
	}
	if err != nil {
		return failed(m, err)
	}
	return codec.Deliver(reply, answer)
}

// NewStream opens a call whose backend is chosen by the first message that is
// sent on it.
func (d *Director) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	m := d.table.methods[name]
	if m == nil {
		return d.table.backends[0].Conn.NewStream(ctx, desc, name, opts...)
	}
	return newStream(ctx, d.table, m, desc, opts), nil
}
