package dial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/transport"
)

// A Config says how to reach one backend. It needs an Address.
type Config struct {
	// Name is the name of the backend, as in [director.Backend]. Errors and the Tracer have it.
	Name string

	// Address is the address of the backend: the absolute path of a unix socket, HOST:PORT,
	// dns:///HOST:PORT for all servers that DNS knows by that name, or vsock:CID:PORT.
	Address string

	// More are the addresses of further servers, each of which can answer any call in place of
	// the one at Address. Optional.
	More []string

	// Balance is gRPC's policy for choosing among several servers: round_robin, pick_first or
	// least_request_experimental. Empty means round_robin.
	Balance string

	// GRPC makes calls with grpc-go's client. Otherwise a Conn to a single server uses the client of
	// criproxy's own data path, which needs less CPU time and bounds the memory for messages while
	// they arrive.
	GRPC bool

	// Credentials secure the connection. Nil leaves it unsecured.
	Credentials credentials.TransportCredentials

	// Profile, Schema and Conversions are those of the [director.Config] that the Conn is for. A
	// Conn without a Profile has only the newest version of the API.
	Profile     *director.Profile
	Schema      *codec.Schema
	Conversions map[string]director.Conversion

	// MaxMessage is the largest message, in bytes, that the Conn accepts from the backend.
	// Zero means [director.DefaultMaxMessage].
	MaxMessage int

	// Budget limits the memory for messages that do not come in one piece. Nil means no limit.
	Budget Budget

	// Lost is called for each field of metadata that does not reach the other side as it came. It must
	// not wait. Optional.
	Lost func(Loss)

	// Via is a value that the Conn adds to the metadata field criproxy-hop of each call, in addition to
	// those that the context has. A proxy that finds its own value in a call has been called by itself.
	// Empty adds none.
	Via string

	// Primary says that the backend is the primary, for the Tracer.
	Primary bool

	// Tracer sees this backend's legs. Optional.
	Tracer director.Tracer

	// Dial connects to an address. Nil means the network of this machine.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Admit is called before each call, in the context of the call. The call fails with its error, or
	// calls done when it ends. It must not wait. Optional.
	Admit func(ctx context.Context, method string) (done func(), err error)

	// Watch is called by Run whenever it becomes possible or impossible to reach the backend, and
	// for the first state. It gets nil if the backend can be reached, otherwise the reason why
	// not. Optional.
	Watch func(error)
}

// A Budget is memory for messages, in bytes. A [Conn] reserves memory when it has the beginning of
// a message, which says how long the message is; HTTP/2 flow control keeps the sender from sending
// much more before the Conn has the memory. The context is that of the call. Several goroutines
// call the methods at once; TryReserve and Release must not wait.
type Budget interface {
	// TryReserve takes n bytes if they are free now, and reports whether it did.
	TryReserve(ctx context.Context, n int) bool
	// Reserve waits for n bytes and takes them. Its error must be a gRPC status, with which the
	// call fails.
	Reserve(ctx context.Context, n int) error
	// Release returns n bytes.
	Release(ctx context.Context, n int)
}

// A Conn is a connection to one backend. It takes the methods of the API's newest version, and
// calls the backend in the newest version that the backend has; it asks the backend for its
// versions once after each connect. If the connection ends the Conn connects again, with pauses of
// 100 ms to 3 s. While it cannot, calls fail with Unavailable at once. It is safe for concurrent
// use.
//
// Only dials, spoken and dialError change. dials counts the connections, so that a call can find out
// whether the backend may have been restarted since it was asked.
type Conn struct {
	name, address string
	addresses     []string // address, and those of further servers
	cc            link
	versions      *profile.Versions      // nil: the backend gets every call as it is
	asking        chan struct{}          // a lock that holds a token while a call asks
	dials         atomic.Uint64          // connections made so far: see spoken
	spoken        atomic.Pointer[spoken] // nil: the backend has not been asked yet
	endless       map[string]bool        // :: full method, in any version → it is an endless stream
	maxMessage    int
	watch         func(error)
	connect       func(ctx context.Context, address string) (net.Conn, error)
	tracer        director.Tracer
	admit         func(ctx context.Context, method string) (done func(), err error)
	primary       bool
	dialError     atomic.Pointer[error] // of the latest attempt to connect
}

// New returns a connection, which connects at its first call or in [Conn.Run]. The caller must
// end it: with [Conn.Close], or by ending Run.
func New(cfg Config) (*Conn, error) {
	c := &Conn{
		name: cfg.Name, address: cfg.Address, addresses: append([]string{cfg.Address}, cfg.More...), primary: cfg.Primary,
		asking: make(chan struct{}, 1), maxMessage: cmp.Or(cfg.MaxMessage, director.DefaultMaxMessage),
		connect: cfg.Dial, watch: cfg.Watch, tracer: cfg.Tracer, admit: cfg.Admit,
	}
	if c.connect == nil {
		c.connect = transport.Dial
	}
	if c.admit == nil {
		c.admit = func(context.Context, string) (func(), error) { return func() {}, nil }
	}
	if cfg.Profile != nil {
		methods := cfg.Profile.Describes(cfg.Schema)
		v, err := profile.VersionsOf(cfg.Profile, methods, func(name string) (profile.Conversion, bool) {
			c, ok := cfg.Conversions[name]
			return profile.Conversion(c), ok
		})
		if err != nil {
			return nil, err
		}
		if len(v.Packages) > 1 {
			c.versions = v
		}
		c.endless = map[string]bool{}
		for _, m := range methods {
			if cfg.Profile.Endless(m.Name) {
				for _, to := range v.ToEach(m.Name) {
					c.endless[to.Method] = true
				}
			}
		}
	}
	link, err := c.link(cfg)
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", c, err)
	}
	c.cc = link
	return c, nil
}

// String returns the name and address of the backend.
func (c *Conn) String() string {
	return director.Backend{Name: c.name}.String() + " (" + c.address + ")"
}

// dial connects for the link, and notes how that went: gRPC does not say why a backend cannot be reached.
func (c *Conn) dial(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := c.connect(ctx, addr)
	c.dialError.Store(&err)
	if err == nil {
		c.dials.Add(1) // before the connection is used
	}
	return nc, err
}

// Absent reports whether no process listens at any address of the backend: the socket file does
// not exist, or the connection is refused. It tries to connect, for at most a second. Any other
// failure proves nothing, and Absent reports false.
func (c *Conn) Absent(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, absentTime)
	defer cancel()
	for _, one := range c.addresses {
		if strings.HasPrefix(one, transport.DNSScheme) {
			return false
		}
		nc, err := c.connect(ctx, one)
		if err == nil {
			_ = nc.Close() // nothing was sent
			return false
		}
		if !absent(err) {
			return false
		}
	}
	return true
}

// absentTime bounds how long an address may take to refuse.
const absentTime = time.Second

// Run keeps the connection up until ctx ends, and then closes it. Its error is nil.
func (c *Conn) Run(ctx context.Context) error {
	defer c.cc.Close() // its error would change nothing
	notified := connectivity.Idle
	notify := func(state connectivity.State, err error) {
		if c.watch != nil && state != notified {
			notified = state
			c.watch(err)
		}
	}
	for {
		state := c.cc.GetState()
		switch state {
		case connectivity.Ready:
			notify(state, nil)
		case connectivity.TransientFailure:
			notify(state, c.unreachable(c.failure()))
		}
		if state == connectivity.Idle {
			c.cc.Connect()
		}
		if !c.waitForChange(ctx, state) {
			return nil
		}
	}
}

// failure returns the reason why the backend cannot be reached.
func (c *Conn) failure() error {
	if e := c.dialError.Load(); e != nil && *e != nil {
		return *e
	}
	if l, ok := c.cc.(*transport.Client); ok {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return errors.New("the connection was lost")
}

// Close closes a connection on which [Conn.Run] does not run. Calls under way fail.
func (c *Conn) Close() error { return c.cc.Close() }

// Invoke makes a unary call, with frames or protobuf messages. Of the options of this and of NewStream,
// only those for header and trailer count.
func (c *Conn) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	return codec.Conn{Caller: c}.Invoke(ctx, name, args, reply, opts...)
}

// Call is Invoke.
func (c *Conn) Call(ctx context.Context, call *codec.Call) error {
	done, err := c.admit(ctx, call.Method)
	if err != nil {
		return err
	}
	defer done()
	w, err := c.wording(ctx, call.Method)
	if err != nil {
		return err
	}
	request := call.Request
	if w.to != nil {
		if request, err = w.to.Request(request.Ref()); err != nil {
			return unreadable(w.name, err)
		}
		defer request.Free()
	}
	ctx, leg := c.trace(ctx, w.name)
	if leg != nil {
		leg.Request(request)
	}
	err = call.OnAs(ctx, c.cc, w.name, request)
	if leg != nil {
		err = transport.TimedOut(ctx, err)
		if transport.SaysMore(call.Header) {
			leg.Header(call.Header)
		}
		if err == nil {
			leg.Reply(call.Reply)
		}
		leg.End(err, call.Trailer)
	}
	if err != nil {
		return c.explain(w, err, call.Header, call.Trailer)
	}
	if w.to != nil {
		if call.Reply, err = w.to.Reply(call.Reply); err != nil {
			return unreadable(w.name, err)
		}
	}
	return nil
}

// trace begins a leg of this backend. It returns nil if there is no Tracer, or if the Tracer
// declines the leg.
func (c *Conn) trace(ctx context.Context, name string) (context.Context, director.Leg) {
	if c.tracer == nil {
		return ctx, nil
	}
	return c.tracer.Begin(ctx, director.LegInfo{Method: name, Backend: c.name, Primary: c.primary, Endless: c.endless[name]})
}

// NewStream opens a streaming call.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return codec.Conn{Caller: c}.NewStream(ctx, desc, name, opts...)
}
