package memory

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// Conn is a connection to a backend that answers from memory while the backend is slow or gone. It
// is safe for concurrent use.
//
// One lock, that of the Memory, guards what a Conn knows: a reload makes another Conn with the same
// Memory, and both use it until [Conn.Retire]. Nothing waits or makes a call with the lock held.
// Three goroutines of Run work beside the calls: one makes lists and decides, one writes the file,
// one calls Watch. A disk or a log that hangs delays only its own.
//
// The invariant: an answer from memory is never older than what a client of this backend was
// answered before. So each request for a list has a number, each change by a call has the number of
// the latest request before it, and an answer counts only for what happened before its request.
type Conn struct {
	codec.Conn // itself, for Invoke and NewStream
	cfg        Config
	next       codec.Caller
	mem        *Memory
	lists      []*list
	kept       []*kept
	lags       []*lag
	roles      map[string]role // :: full method
	check      chan struct{}   // holds a token if Run is to begin its next round now
	pulse      pulse

	unasked bool // see Unasked

	life       context.Context // of the requests in the background
	end        context.CancelFunc
	background sync.WaitGroup

	mu        *sync.Mutex // the Memory's; guards the fields below
	state     State
	epoch     context.Context // the time since the backend came back; ends when the backend goes
	endEpoch  context.CancelCauseFunc
	back      chan struct{}    // closed when the backend comes back; nil unless it is gone
	stays     bool             // it is gone, and waiting for it is useless: it has answered nothing, or must be mended
	patience  time.Duration    // how long it may be silent: Silence, or more if it is known to answer that late
	probeTime time.Duration    // how long the next call of Alive may take while it is gone
	waiting   map[int]*attempt // :: number → an attempt that has used up its budget
	waited    int              // how many have
	probing   bool             // Alive is under way
	refused   time.Time        // when a change was last refused because the backend is gone
	retired   bool             // the Memory is another connection's now
	notified  bool             // Watch was notified of a condition
	follows   bool             // statuses are being asked for
	unwatched []State          // states for which Watch has not been called yet
	notify    chan struct{}    // holds a token if there are some
}

// role says what a method does to the memory.
type role struct {
	list     *list // the list that it returns
	kept     *kept // its reply is kept
	status   *list // its reply is the status of an item of this list
	changes  []*list
	subjects []*subject      // for each of changes: the items of that list that a call changes; nil: unknown
	names    []*rewrite.Path // for each of changes: where the request names an item that is its own status
	removes  []bool          // for each of changes: whether a call removes these items
	becomes  []*becomes      // for each of changes: what the items become; nil: unknown
	creates  *list           // the list that gets a new item
	created  *rewrite.Path   // where the reply has the id of the new item
	draft    *draft          // of the new item
}

// New returns a connection that remembers in cfg.Memory. A memory that could not be read is no
// error of New: the backend's lists fail, and say why, until the backend has answered.
func New(cfg Config) (*Conn, error) {
	switch {
	case cfg.Policy == "":
		cfg.Policy = LastKnown
	case cfg.Policy != LastKnown && cfg.Policy != Fail && cfg.Policy != Skip:
		return nil, fmt.Errorf("policy: is %q, want %q, %q or %q", cfg.Policy, LastKnown, Fail, Skip)
	}
	cfg.Budget = orDefault(cfg.Budget, DefaultBudget)
	cfg.Silence = max(orDefault(cfg.Silence, DefaultSilence), cfg.Budget)
	cfg.Interval = orDefault(cfg.Interval, DefaultInterval)
	cfg.RequiredWait = orDefault(cfg.RequiredWait, cfg.Silence)
	cfg.MaxBytes = orDefault(cfg.MaxBytes, DefaultMaxBytes)
	if cfg.Memory == nil {
		cfg.Memory = NewMemory(cfg.Name)
	}
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
		cfg: cfg, next: codec.CallerOf(cfg.Conn), mem: cfg.Memory, lists: lists, kept: replies, roles: map[string]role{},
		check: make(chan struct{}, 1), notify: make(chan struct{}, 1),
		mu: &cfg.Memory.mu, patience: cfg.Silence, waiting: map[int]*attempt{},
	}
	if cfg.Alive == "" && !c.gated() {
		c.cfg.Alive, c.unasked = HealthCheck, true
	}
	c.Conn.Caller = c
	if err := c.compileRoles(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.mem.conn = c
	c.mu.Unlock()
	for _, l := range lists {
		l.stamps = cfg.Spec.Stamps
		if err := c.mem.attach(l); err != nil {
			c.mem.forgetAll(err)
		}
		c.addLag(&l.lag, l.anyMethod().Name)
		if l.status != nil {
			c.addLag(&l.status.lag, l.status.method.Name)
		}
	}
	for _, k := range replies {
		c.mem.attachReply(k)
		c.addLag(&k.lag, k.method.Name)
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	c.state = State{Since: time.Now(), Seen: c.mem.seen}
	for _, g := range c.lags {
		if g.late() { // it was so for the previous connection
			c.state.Condition, c.state.Err = Slow, g.why
			break
		}
	}
	return c, nil
}

// addLag begins to watch how long the answers of a method take. A method that was late for the
// previous connection is late for this one.
func (c *Conn) addLag(g *lag, method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.method = method
	if why, ok := c.mem.late[method]; ok {
		g.why, g.before = errors.New(why), true
	}
	c.lags = append(c.lags, g)
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
			if removes := matchesAny(l.spec.Removed, short); removes || matchesAny(l.spec.Changed, short) {
				r.names = append(r.names, l.nameIn(m))
				becomes, err := l.compileBecomes(short)
				if err != nil {
					errs = append(errs, fmt.Errorf("known.lists[%d].becomes.%s: %w", i, short, err))
				}
				r.changes, r.subjects, r.removes, r.becomes = append(r.changes, l), append(r.subjects, l.subject(m)), append(r.removes, removes), append(r.becomes, becomes)
			}
			if at, ok := l.spec.Created[short]; ok {
				p, err := rewrite.ParseTextPath(m.Output, at)
				if err != nil {
					errs = append(errs, fmt.Errorf("known.lists[%d].created.%s: %w", i, short, err))
				}
				r.creates, r.created = l, p
				if r.draft, err = l.compileDraft(m); err != nil {
					errs = append(errs, fmt.Errorf("known.lists[%d].draft: %w", i, err))
				}
			}
		}
		c.roles[m.Name] = r
	}
	return errors.Join(errs...)
}

// State returns the state of the backend.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Back returns a channel that is closed when the backend comes back, or when waiting for it becomes useless. It is nil if
// the backend is not gone.
func (c *Conn) Back() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Condition != Gone {
		return nil
	}
	return c.back
}

// Age returns the age of the oldest list that memory answers with. It is zero while the backend
// is up.
func (c *Conn) Age() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var oldest time.Duration
	for _, l := range c.lists {
		if c.state.Condition != Up && l.spec.Gate && l.complete {
			oldest = max(oldest, time.Since(l.at))
		}
	}
	return oldest
}

// Memory returns the Memory that the connection reads and writes.
func (c *Conn) Memory() *Memory { return c.mem }

// Check asks Run to begin its next round now, because something has changed.
func (c *Conn) Check() {
	select {
	case c.check <- struct{}{}:
	default:
	}
}

// Call makes a unary call.
func (c *Conn) Call(ctx context.Context, call *codec.Call) error {
	r, described := c.roles[call.Method]
	switch {
	case !described:
		return c.next.Call(ctx, call) // the Spec does not name it
	case r.list != nil:
		return c.list(ctx, r.list, call)
	case r.kept != nil:
		return c.keptReply(ctx, r.kept, call)
	case r.status != nil:
		return c.statusOf(ctx, r.status, call)
	}
	sent := false // a call that never reached the backend has changed nothing
	err := c.call(ctx, func(ctx context.Context) error {
		sent = true
		return c.next.Call(ctx, call)
	})
	if sent {
		c.noteCall(r, call, err)
	} else if len(r.changes) > 0 {
		c.noteRefusal()
	}
	if err == nil && call.Method != c.cfg.Alive {
		c.answered()
	}
	return err
}

// matchesAny reports whether one of patterns matches name.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// Open opens a streaming call.
func (c *Conn) Open(ctx context.Context, desc *grpc.StreamDesc, name string, first *codec.Frame) (codec.Stream, error) {
	r, described := c.roles[name]
	if !described {
		return c.next.Open(ctx, desc, name, first)
	}
	if r.list != nil {
		return c.listStream(ctx, r.list, name, first), nil
	}
	epoch, err := c.alive()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(epoch, cancel)
	context.AfterFunc(ctx, func() { stop() }) // also if the client does not read the stream to its end
	s, err := c.next.Open(ctx, desc, name, first)
	if err != nil {
		cancel()
		return nil, c.judge(epoch, err)
	}
	return &guardedStream{Stream: s, conn: c, epoch: epoch, end: cancel}, nil
}

// guardedStream is a stream that ends when its backend goes down.
type guardedStream struct {
	codec.Stream
	conn  *Conn
	epoch context.Context
	end   func()
}

func (s *guardedStream) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if err != nil {
		defer s.end()
		if !isEOF(err) {
			err = s.conn.judge(s.epoch, err)
		}
	}
	return f, err
}

// mark marks the answer to a method as one from memory, for the caller of ctx. c.mu may be held.
func (c *Conn) mark(ctx context.Context, method string, call *codec.Call) {
	call.Header = metadata.Pairs(HeaderKey, c.cfg.Name)
	if c.cfg.Remembered != nil {
		c.cfg.Remembered(ctx, method)
	}
}
