package known

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A Policy says what a backend that is down means for lists.
type Policy string

// The policies.
const (
	// LastKnown keeps the backend's items, and answers its status calls.
	LastKnown Policy = "last-known"
	// Fail fails every list, of all backends.
	Fail Policy = "fail"
	// Skip leaves the backend's items out, as the original CRI Proxy did. kubelet
	// kills pods that it does not see.
	Skip Policy = "skip"
)

// The defaults of a [Config].
const (
	DefaultBudget   = 2 * time.Second
	DefaultInterval = time.Second
	DefaultMaxBytes = 64 << 20
)

// HeaderKey is the key of the header that marks an answer from memory. Its value
// is the backend's name.
const HeaderKey = "criproxy-last-known"

// Config is what a [Conn] is made of.
type Config struct {
	Name string                   // for errors; what people call the backend
	Conn grpc.ClientConnInterface // the way to the backend; takes *codec.Frame

	Schema  *codec.Schema
	Package string // of the methods that Spec names
	Spec    Spec

	// Equivalents returns all names by which the thing with this name may be
	// listed, itself included. Optional.
	Equivalents func(name string) []string

	// Policy is what being down means. Empty means LastKnown.
	Policy Policy

	// Required makes lists wait for a backend that this node has never seen, for
	// up to RequiredWait, and then fail, instead of leaving it out.
	Required     bool
	RequiredWait time.Duration // zero means 10 s

	// Budget is how long a list may take, zero DefaultBudget. Interval is how often
	// a backend that no client asks is asked, zero DefaultInterval.
	Budget   time.Duration
	Interval time.Duration

	// File keeps what is known over a restart of this process. Empty means that it
	// is not kept.
	File string

	// MaxBytes bounds what is kept in memory, zero DefaultMaxBytes.
	MaxBytes int

	// Watch is told of each change of state, and must return at once. Optional.
	Watch func(State)
}

// State is how a backend is doing.
type State struct {
	Up    bool
	Since time.Time
	Seen  bool  // whether it has ever been seen on this node: if not, it has no items
	Err   error // why it is down, or what went wrong that did not take it down
}

// Conn is a connection to a backend that answers for it while it is gone. It is
// safe for concurrent use.
type Conn struct {
	cfg   Config
	next  grpc.ClientConnInterface
	lists []*list
	kept  []*kept
	roles map[string]role // :: full method
	check chan struct{}   // asks Run to look now
	seen  chan struct{}   // closed when the backend has been seen

	unsaved  bool                             // the file could not be written, and that was told; the writer's
	saving   sync.Mutex                       // guards the file, and what follows
	write    func(string, *fileContent) error // writeFile
	released bool                             // the file is somebody else's now

	mu       sync.Mutex // guards what follows, and the memory of all lists
	state    State
	epoch    context.Context // ends when the backend goes down
	endEpoch context.CancelCauseFunc
	unsure   error // why the file could not be read, until the backend is seen
	news     bool  // all else that the file is to say is not what it says
}

// role is what a method means here.
type role struct {
	list    *list // it lists these
	kept    *kept // its reply is kept
	status  *list // it tells the status of one of these
	changes []*list
	creates *list
	created *rewrite.Path // where the reply of creates has the new id
}

// New returns a connection that knows what is in cfg.File. A file that cannot be
// read is no error of New: the backend's lists fail, and say why, until the
// backend has been seen.
func New(cfg Config) (*Conn, error) {
	switch {
	case cfg.Policy == "":
		cfg.Policy = LastKnown
	case cfg.Policy != LastKnown && cfg.Policy != Fail && cfg.Policy != Skip:
		return nil, fmt.Errorf("policy: is %q, want %q, %q or %q", cfg.Policy, LastKnown, Fail, Skip)
	}
	cfg.Budget = orDefault(cfg.Budget, DefaultBudget)
	cfg.Interval = orDefault(cfg.Interval, DefaultInterval)
	cfg.RequiredWait = orDefault(cfg.RequiredWait, 10*time.Second)
	cfg.MaxBytes = orDefault(cfg.MaxBytes, DefaultMaxBytes)
	if cfg.Equivalents == nil {
		cfg.Equivalents = func(name string) []string { return []string{name} }
	}
	lists, err := compileLists(cfg.Spec.Lists, cfg.Schema, cfg.Package)
	if err != nil {
		return nil, err
	}
	replies, err := compileReplies(cfg.Spec.Replies, cfg.Schema, cfg.Package)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		cfg: cfg, next: cfg.Conn, lists: lists, kept: replies, roles: map[string]role{},
		check: make(chan struct{}, 1), seen: make(chan struct{}),
		state: State{Up: true, Since: time.Now()}, write: writeFile,
	}
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	for _, l := range lists {
		l.statuses, l.stale, l.fresh = map[string][]byte{}, map[string]bool{}, map[string]uint64{}
		l.asked, l.answered = 1, 1
	}
	if err := c.compileRoles(); err != nil {
		return nil, err
	}
	if err := c.load(); err != nil {
		c.unsure = err
	}
	return c, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func (c *Conn) compileRoles() error {
	var errs []error
	for _, m := range c.cfg.Schema.Methods() {
		short := path.Base(m.Name)
		if ok, _ := path.Match("/"+c.cfg.Package+".*/*", m.Name); !ok {
			continue
		}
		var r role
		for _, k := range c.kept {
			if m == k.method {
				r.kept = k
			}
		}
		for i, l := range c.lists {
			switch {
			case m == l.unary || m == l.stream:
				r.list = l
			case l.status != nil && m == l.status.method:
				r.status = l
			}
			for _, pattern := range l.spec.Changed {
				if ok, _ := path.Match(pattern, short); ok {
					r.changes = append(r.changes, l)
				}
			}
			if at, ok := l.spec.Created[short]; ok {
				p, err := textPath(m.Output, at)
				if err != nil {
					errs = append(errs, fmt.Errorf("known.lists[%d].created.%s: %w", i, short, err))
				}
				r.creates, r.created = l, p
			}
		}
		c.roles[m.Name] = r
	}
	return errors.Join(errs...)
}

// State returns how the backend is doing.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Err returns why what was known could not be read from the file, nil if it could.
func (c *Conn) Err() error { return c.unsure }

// Check asks Run to look at the backend now: something has changed.
func (c *Conn) Check() {
	select {
	case c.check <- struct{}{}:
	default:
	}
}

// Invoke does a unary call.
func (c *Conn) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	r, described := c.roles[name]
	if !described {
		return c.next.Invoke(ctx, name, args, reply, opts...) // none of our business
	}
	switch {
	case r.list != nil:
		request, err := codec.FrameOf(args)
		if err != nil {
			return err
		}
		answer, err := c.list(ctx, r.list, name, request, opts)
		if err != nil {
			return err
		}
		return codec.Deliver(reply, answer)
	case r.kept != nil:
		return c.keptReply(ctx, r.kept, name, args, reply, opts)
	case r.status != nil:
		return c.statusOf(ctx, r.status, name, args, reply, opts)
	}
	answer := &codec.Frame{}
	err := c.call(ctx, func(ctx context.Context) error { return c.next.Invoke(ctx, name, args, answer, opts...) })
	c.note(r, answer, err)
	if err != nil {
		return err
	}
	return codec.Deliver(reply, answer)
}

// note remembers what a call may have changed. One that failed may have as well.
func (c *Conn) note(r role, answer *codec.Frame, err error) {
	if len(r.changes) == 0 && r.creates == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range r.changes {
		l.touch()
	}
	if r.creates != nil && err == nil {
		if id, ok, err := r.created.Lookup(answer.Bytes()); err == nil && ok && len(id) > 0 {
			r.creates.fresh[string(id)] = r.creates.asked
		}
	}
	c.Check()
}

// NewStream opens a streaming call.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	r, described := c.roles[name]
	if !described {
		return c.next.NewStream(ctx, desc, name, opts...)
	}
	if r.list != nil {
		return &listStream{ctx: ctx, conn: c, list: r.list, name: name, opts: opts}, nil
	}
	epoch, err := c.alive()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(epoch, cancel)
	context.AfterFunc(ctx, func() { stop() }) // however it ends; nobody need read it to its end
	cs, err := c.next.NewStream(ctx, desc, name, opts...)
	if err != nil {
		cancel()
		return nil, c.judge(epoch, err)
	}
	return &guardedStream{ClientStream: cs, conn: c, epoch: epoch, end: cancel}, nil
}

// guardedStream is a stream that ends when its backend goes down.
type guardedStream struct {
	grpc.ClientStream
	conn  *Conn
	epoch context.Context
	end   func()
}

func (s *guardedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		defer s.end()
		if !isEOF(err) {
			err = s.conn.judge(s.epoch, err)
		}
	}
	return err
}

// absent reports whether the backend was never seen on this node, and need not
// have been: it has nothing. c.mu is held.
func (c *Conn) absent() bool { return !c.state.Seen && c.unsure == nil && !c.cfg.Required }

// bytes is the size of everything that is known. c.mu is held.
func (c *Conn) bytes() int {
	n := 0
	for _, l := range c.lists {
		n += l.bytes()
	}
	for _, k := range c.kept {
		n += len(k.reply)
	}
	return n
}

// mark sets the header that says that an answer comes from memory.
func mark(opts []grpc.CallOption, backend string) {
	for _, o := range opts {
		if h, ok := o.(grpc.HeaderCallOption); ok {
			*h.HeaderAddr = metadata.Pairs(HeaderKey, backend)
		}
	}
}
