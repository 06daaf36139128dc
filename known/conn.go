package known

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

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

	saving   sync.Mutex // guards the file, and what follows
	unsaved  bool       // the file could not be written, and that was told
	released bool       // the file is somebody else's now

	mu       sync.Mutex // guards what follows, and the memory of all lists
	state    State
	epoch    context.Context // ends when the backend goes down
	endEpoch context.CancelCauseFunc
	unsure   error // why the file could not be read, until the backend is seen
	news     bool  // since the file was written
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
		state: State{Up: true, Since: time.Now()},
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

// call does f on the backend if it is up, and ends it if the backend goes down.
func (c *Conn) call(ctx context.Context, f func(context.Context) error) error {
	epoch, err := c.alive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(epoch, cancel)()
	err = f(ctx)
	return c.judge(epoch, err)
}

// alive returns the context of the time the backend has been up, or an error if
// it is down.
func (c *Conn) alive() (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.Up {
		return nil, c.unavailable()
	}
	return c.epoch, nil
}

// unavailable is the error of a call to a backend that is down. c.mu is held.
func (c *Conn) unavailable() error {
	return status.Errorf(codes.Unavailable, "criproxy: backend %s is down since %s: %v",
		c.cfg.Name, c.state.Since.Format(time.TimeOnly), c.state.Err)
}

// judge turns the error of a call that began in epoch into what the client gets,
// and learns from it how the backend is doing.
func (c *Conn) judge(epoch context.Context, err error) error {
	if err == nil {
		return nil
	}
	if epoch.Err() != nil { // it ended because the backend went down
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.state.Up {
			return c.unavailable()
		}
		return status.Errorf(codes.Unavailable, "criproxy: backend %s was down meanwhile: %v", c.cfg.Name, context.Cause(epoch))
	}
	if status.Code(err) == codes.Unavailable {
		if unreachable(err) {
			c.goDown(epoch, err)
		} else {
			c.Check() // it says so itself; lists will tell
		}
	}
	return err
}

// unreachable reports whether err came about on this side, and not from the
// backend.
func unreachable(err error) bool {
	var u interface{ Unreachable() bool }
	return errors.As(err, &u) && u.Unreachable()
}

// goDown marks the backend down, if it is still in epoch.
func (c *Conn) goDown(epoch context.Context, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch != epoch || !c.state.Up {
		return
	}
	c.state = State{Since: time.Now(), Seen: c.state.Seen, Err: c.reason(why)}
	c.endEpoch(c.state.Err)
	if c.cfg.Watch != nil {
		c.cfg.Watch(c.state)
	}
	c.Check()
}

// reason is why a backend is down, without what every message about it says
// anyway.
func (c *Conn) reason(err error) error {
	message := strings.TrimPrefix(status.Convert(err).Message(), "criproxy: backend "+c.cfg.Name+" ")
	return errors.New(message)
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
	cs, err := c.next.NewStream(ctx, desc, name, opts...)
	if err != nil {
		stop()
		cancel()
		return nil, c.judge(epoch, err)
	}
	return &guardedStream{ClientStream: cs, conn: c, epoch: epoch, end: func() { stop(); cancel() }}, nil
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

// statusOf answers a status call: the backend does, or what is known of it.
func (c *Conn) statusOf(ctx context.Context, l *list, name string, args, reply any, opts []grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	body := request.Bytes()
	id, _, err := l.status.id.Lookup(body)
	if err != nil {
		return err
	}
	item := c.item(l, string(id))
	answer := &codec.Frame{}
	err = c.call(ctx, func(ctx context.Context) error { return c.next.Invoke(ctx, name, request, answer, opts...) })
	if err == nil {
		if l.asksStatus() && isOnlyID(body, id) {
			c.keep(l, string(id), item, answer)
		}
		return codec.Deliver(reply, answer)
	}
	if c.cfg.Policy != LastKnown || ended(ctx) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Up {
		return err
	}
	if known, ok := c.statusFromMemory(l, string(id)); ok {
		mark(opts, c.cfg.Name)
		return codec.Deliver(reply, codec.NewFrame(known))
	}
	return c.unavailable()
}

// item returns an item as it was last listed, nil if it was not.
func (c *Conn) item(l *list, id string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.settle()
	return l.items[id]
}

// keep remembers the status of an item that was asked for when it was listed as
// item. If it is listed otherwise by now, the status may be older than that.
func (c *Conn) keep(l *list, id string, item []byte, answer *codec.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes()+answer.Len() > c.cfg.MaxBytes {
		return
	}
	l.settle()
	if same(l.item, l.items[id], item) {
		delete(l.stale, id)
	}
	if b := answer.Bytes(); !same(l.status.method.Output, l.statuses[id], b) {
		l.statuses[id] = append([]byte{}, b...)
		c.news = true
	}
}

// statusFromMemory returns the reply to a status call, if it is known. A thing
// whose status is its item in the list, and that is not listed, is not there: the
// reply is empty. A status from before the item changed is not known: kubelet, which
// asks when a list shows a change, would take it for what the change came to.
// c.mu is held.
func (c *Conn) statusFromMemory(l *list, name string) ([]byte, bool) {
	l.settle()
	if l.status.wrap != 0 {
		item, ok := l.byName(c.cfg.Equivalents(name))
		if !ok {
			return nil, l.complete || c.absent()
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(l.status.wrap), protowire.BytesType), item), true
	}
	id, _ := l.resolve(name)
	s := l.statuses[id]
	return s, len(s) > 0 && !l.stale[id]
}

// byName returns the item that has one of names, as its id or as another name.
func (l *list) byName(names []string) ([]byte, bool) {
	for _, name := range names {
		if id, ok := l.resolve(name); ok {
			return l.items[id], true
		}
	}
	for _, id := range l.order {
		for _, p := range l.names {
			found := false
			_ = p.All(l.items[id], func(v []byte) error {
				found = found || slices.Contains(names, string(v))
				return nil
			})
			if found {
				return l.items[id], true
			}
		}
	}
	return nil, false
}

// absent reports whether the backend was never seen on this node, and need not
// have been: it has nothing. c.mu is held.
func (c *Conn) absent() bool { return !c.state.Seen && c.unsure == nil && !c.cfg.Required }

// isOnlyID reports whether a request has nothing in it but id.
func isOnlyID(request, id []byte) bool {
	_, _, n := protowire.ConsumeField(request)
	return n == len(request) && n <= len(id)+1+5
}

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
