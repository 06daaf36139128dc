package director

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// A Director is a connection to several backends that works like a connection to one. It chooses a
// backend by the first message of each call. It is safe for concurrent use.
//
// All that a reload changes is in the table, which is immutable: a call loads it once, and uses it to its end. What must
// outlive reloads, the affinities and the mirrors, is in the Director itself, and the table points to it.
type Director struct {
	table      atomic.Pointer[table]
	front      codec.Caller // gets the calls of clients, in the newest version of the API
	tracer     Tracer
	affinities affinities

	mirrors mirrors
}

// New returns a director for cfg. Its error names every mistake in the profile and the
// backends. If the profile mirrors a method, the caller must call Close at the end. Otherwise the
// director starts goroutines only for calls under way, and there is nothing to close.
func New(cfg Config) (*Director, error) {
	t, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	d := &Director{tracer: cfg.Tracer}
	d.mirrors.newest, d.mirrors.underWay = d.table.Load, map[mirrorKey]*mirror{}
	d.mirrors.life, d.mirrors.end = context.WithCancel(context.Background())
	d.use(t)
	d.front = d
	if cfg.Around != nil {
		d.front = codec.CallerOf(cfg.Around(d))
	}
	return d, nil
}

// Reload makes the director work as if [New] had made it with cfg, from the next call on. Calls
// under way finish on the backends with which they began. Endless streams and mirrored requests go
// on with the new backends. If cfg has mistakes nothing changes, and the error names them. Around
// and Tracer stay those that New got.
func (d *Director) Reload(cfg Config) error {
	commit, err := d.Stage(cfg)
	if err == nil {
		commit()
	}
	return err
}

// Stage is the first half of [Director.Reload]: it finds the mistakes, and changes nothing. commit is the other half, which
// cannot fail, for callers who change more than the director.
func (d *Director) Stage(cfg Config) (commit func(), err error) {
	t, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	return func() { d.use(t) }, nil
}

// Close ends the mirroring of requests, those that wait included, and returns when its goroutines
// have ended. The director still takes calls, but mirrors none.
func (d *Director) Close() { d.mirrors.close() }

// use makes t the table of calls from now on. Endless streams and mirrors move to it: those that wait for replaced to be closed
// find t in next, so next must be set before.
func (d *Director) use(t *table) {
	t.affinities, t.mirrors = &d.affinities, &d.mirrors
	for _, b := range t.backends {
		t.links = append(t.links, linkOf(b.Conn))
	}
	if old := d.table.Swap(t); old != nil {
		old.next = t
		close(old.replaced)
	}
	d.mirrors.follow()
}

// Endless reports whether the calls of a method, in any version of the API, are endless streams. An
// endless stream lasts until the client ends it. After a [Director.Reload] it goes on with the new
// backends.
func (d *Director) Endless(name string) bool {
	m := d.method(name)
	return m != nil && m.endless
}

// Invoke makes a unary call with front names, in the newest version of the API: on one backend, or
// on several, whose replies it merges. args and reply are *codec.Frame or protobuf messages. Of the
// options of this and of NewStream, only those for header and trailer count.
func (d *Director) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	return codec.Conn{Caller: d}.Invoke(ctx, name, args, reply, opts...)
}

// Call is Invoke with frames.
func (d *Director) Call(ctx context.Context, call *codec.Call) error {
	return d.table.Load().call(ctx, call)
}

// call makes a unary call.
func (t *table) call(ctx context.Context, call *codec.Call) error {
	m := t.methods[call.Method]
	if m == nil {
		if err := t.refuse(call.Method); err != nil {
			return err
		}
		return t.calls[0].Call(ctx, call)
	}
	to, err := t.route(ctx, m, call.Request)
	if err != nil {
		return failed(m, err)
	}
	switch to.spread {
	case toOne:
		err = t.unicast(ctx, m, to.backend, call)
	case toAll:
		err = t.fanout(ctx, m, to.among, call)
	case toFirst:
		err = t.firstOf(ctx, m, call)
	case toNone:
		call.Reply = &codec.Frame{}
	}
	if err != nil {
		return failed(m, err)
	}
	return nil
}

// NewStream opens a stream with front names, in the newest version of the API. Its first message
// decides which backend gets it.
//
// The schema says which methods are unary, not desc: grpc-proxy's handler opens every call as a stream
// both ways. For a unary method the stream makes the call that Invoke makes.
func (d *Director) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return front{codec.Conn{Caller: d}, d}.NewStream(ctx, desc, name, opts...)
}

// front is a director, or what is around it, for those who know it only as a connection. It opens a described stream with one
// message from the client, because the director decides by the first message where a stream goes.
type front struct {
	codec.Conn
	director *Director
}

func (f front) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if f.director.table.Load().methods[name] != nil {
		desc = &grpc.StreamDesc{ServerStreams: desc.ServerStreams} // the stream opens with the first message
	}
	return f.Conn.NewStream(ctx, desc, name, opts...)
}
