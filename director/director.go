package director

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// A Director is a connection to several backends as if they were one. It chooses the backend
// by the first message of each call. It is safe for concurrent use.
type Director struct {
	table  atomic.Pointer[table]
	front  grpc.ClientConnInterface // what clients reach: the versions in front of the director
	tracer Tracer
	told   told

	mirrors mirrors
}

// New returns a director for cfg. Its error names every mistake in the profile and the
// backends. The caller calls Close at the end if the profile mirrors a method to all backends;
// otherwise the director starts no goroutine, and there is nothing to close.
func New(cfg Config) (*Director, error) {
	t, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	d := &Director{tracer: cfg.Tracer}
	d.mirrors.newest, d.mirrors.underWay = d.table.Load, map[mirrorKey]*mirror{}
	d.mirrors.life, d.mirrors.end = context.WithCancel(context.Background())
	d.use(t)
	var inner grpc.ClientConnInterface = d
	if cfg.Around != nil {
		inner = cfg.Around(d)
	}
	d.front = &frontVersions{inner, d}
	return d, nil
}

// Reload makes the director work as if [New] had made it with cfg, from the next call on.
// Calls under way finish on the backends they began with; streams that do not end by
// themselves go on with the new backends, as does what is mirrored. If cfg has mistakes nothing changes, and the error
// names them. Around and Tracer stay those that New got.
func (d *Director) Reload(cfg Config) error {
	t, err := compile(cfg)
	if err != nil {
		return err
	}
	d.use(t)
	return nil
}

// Close forgets the requests that are still to be mirrored, and returns when nothing goes on
// behind the scenes. Calls go on, and are not mirrored any more.
func (d *Director) Close() { d.mirrors.close() }

// use makes t the table of calls from now on. Streams without an end and mirrors follow.
func (d *Director) use(t *table) {
	t.told, t.mirrors = &d.told, &d.mirrors
	if old := d.table.Swap(t); old != nil {
		old.next = t
		close(old.replaced)
	}
	d.mirrors.follow()
}

// Endless reports whether the calls of a method, in any version, do not end by themselves
// and follow reloads.
func (d *Director) Endless(name string) bool {
	m := d.method(name)
	return m != nil && m.endless
}

// Invoke makes a unary call with front names: on one backend, or on several, whose replies
// it merges. args and reply are *codec.Frame or protobuf messages.
func (d *Director) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	t := d.table.Load()
	m := t.methods[name]
	if m == nil {
		if err := t.refuse(name); err != nil {
			return err
		}
		if t.elsewhere(name) {
			return t.lookUp(ctx, name, args, reply, opts)
		}
		return t.backends[0].Conn.Invoke(ctx, name, args, reply, opts...)
	}
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	to, err := t.route(ctx, m, request)
	if err != nil {
		return failed(m, err)
	}
	var answer *codec.Frame
	switch to.spread {
	case toOne:
		answer, err = t.unicast(ctx, m, to.backend, request, opts)
	case toAll:
		answer, err = t.fanout(ctx, m, to.among, request, opts)
	case toFirst:
		answer, err = t.firstOf(ctx, m, request, opts)
	case toNone:
		answer = &codec.Frame{}
	}
	if err != nil {
		return failed(m, err)
	}
	return codec.Deliver(reply, answer)
}

// NewStream opens a call whose backend the first message sent on it decides.
func (d *Director) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	t := d.table.Load()
	m := t.methods[name]
	if m == nil {
		if err := t.refuse(name); err != nil {
			return nil, err
		}
		return t.backends[0].Conn.NewStream(ctx, desc, name, opts...)
	}
	return newStream(ctx, t, m, desc, opts), nil
}
