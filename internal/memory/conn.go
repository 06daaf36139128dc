package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// Conn is a connection to a backend that answers from memory while the backend is slow or gone. It is safe for concurrent use.
//
// One lock, that of the Memory, guards what a Conn knows: a reload makes another Conn with the same Memory, and both use it
// until [Conn.Retire]. Nothing waits or makes a call with the lock held. Three goroutines of Run work beside the calls: one
// makes lists and decides, one writes the file, one calls Watch. A disk or a log that hangs delays only its own.
type Conn struct {
	codec.Conn // itself, for Invoke and NewStream
	cfg        Config
	next       codec.Caller
	mem        *Memory
	plan       *inventory.Plan
	lists      []*list
	gates      []*list // those that are gates
	kept       []*kept
	lags       []*lag
	roles      map[string]role // :: full method
	check      chan struct{}   // holds a token if Run is to begin its next round now
	pulse      pulse
	unasked    bool // see Unasked

	life       context.Context // of the requests in the background
	end        context.CancelFunc
	background sync.WaitGroup

	mu        *sync.Mutex // the Memory's; guards the fields below
	state     State
	epoch     context.Context // the time since the backend came back; ends when the backend goes
	endEpoch  context.CancelCauseFunc
	back      chan struct{} // closed when the backend comes back; nil unless it is gone
	stays     bool          // it is gone, and waiting for it is useless: it has answered nothing, or must be mended
	patience  time.Duration // how long it may be silent: Silence, or more if it is known to answer that late
	probeTime time.Duration // how long the next call of Alive may take while it is gone
	waiting   []*attempt    // those that have used up their budgets, the first one first
	probing   bool          // Alive is under way
	refused   time.Time     // when a change was last refused because the backend is gone
	retired   bool          // the Memory is another connection's now
	notified  bool          // Watch was notified of a condition
	follows   bool          // statuses are being asked for
	unwatched []State       // states for which Watch has not been called yet
	notify    chan struct{} // holds a token if there are some
}

// list joins what a Conn has of one list of its Spec: how to read it, what the backend last said, and how long it takes to answer.
type list struct {
	*inventory.ListPlan
	*inventory.Listing // of the Memory; Memory.mu guards it, and the fields below

	lag       lag
	statusLag lag    // of the statuses of its items
	latest    uint64 // the number of the latest request in the background
	round     *round // the latest list for look-ups, perhaps one that has not begun yet; nil: none
}

// role says what memory does about a method.
type role struct {
	list   *list // it returns this list
	kept   *kept // its reply is kept
	status *list // its reply is the status of an item of this list
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
	cfg.Budget = cmp.Or(cfg.Budget, DefaultBudget)
	cfg.Silence = max(cmp.Or(cfg.Silence, DefaultSilence), cfg.Budget)
	cfg.Interval = cmp.Or(cfg.Interval, DefaultInterval)
	cfg.RequiredWait = cmp.Or(cfg.RequiredWait, cfg.Silence)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	if cfg.Memory == nil {
		cfg.Memory = newMemory(cfg.Name, File{})
	}
	plan, err := inventory.Compile(cfg.Spec, cfg.Schema, cfg.Package, cfg.Equivalents)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		cfg: cfg, next: codec.CallerOf(cfg.Conn), mem: cfg.Memory, plan: plan, roles: map[string]role{},
		check: make(chan struct{}, 1), notify: make(chan struct{}, 1),
		mu: &cfg.Memory.mu, patience: cfg.Silence,
	}
	c.Conn.Caller = c
	for _, m := range cfg.Schema.Methods() {
		if strings.HasPrefix(m.Name, "/"+cfg.Package+".") {
			c.roles[m.Name] = role{}
		}
	}
	c.mu.Lock()
	c.mem.conn = c
	if err := c.mem.inv.Use(plan); err != nil {
		c.mem.seen, c.mem.unsure = false, brokenError(c.mem.file.Path, err) // lists fail: there may have been items
	}
	for _, p := range plan.Lists {
		l := &list{ListPlan: p, Listing: c.mem.inv.List(p)}
		c.lists = append(c.lists, l)
		if p.Spec.Gate {
			c.gates = append(c.gates, l)
		}
		c.addLag(&l.lag, p.Method().Name)
		for _, m := range []*codec.Method{p.Unary, p.Stream} {
			if m != nil {
				c.roles[m.Name] = role{list: l}
			}
		}
		if p.Status != nil {
			c.addLag(&l.statusLag, p.Status.Method.Name)
			c.roles[p.Status.Method.Name] = role{status: l}
		}
	}
	for _, p := range plan.Replies {
		k := &kept{ReplyPlan: p}
		c.kept = append(c.kept, k)
		c.addLag(&k.lag, p.Method.Name)
		c.roles[p.Method.Name] = role{kept: k}
	}
	c.mu.Unlock()
	if cfg.Alive == "" && len(c.gates) == 0 {
		c.cfg.Alive, c.unasked = HealthCheck, true
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	c.state = State{Since: time.Now(), Seen: c.mem.seen}
	if why := c.whyLate(); why != nil { // it was so for the previous connection
		c.state.Condition, c.state.Err = Slow, why
	}
	return c, nil
}

// addLag begins to watch how long the answers of a method take. One that was late before still is. c.mu is held.
func (c *Conn) addLag(g *lag, method string) {
	g.method = method
	if why, ok := c.mem.late[method]; ok {
		g.why, g.before = errors.New(why), true
	}
	c.lags = append(c.lags, g)
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

// Age returns the age of the oldest list that memory answers with. It is zero while the backend is up.
func (c *Conn) Age() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var oldest time.Duration
	for _, l := range c.gates {
		if c.state.Condition != Up && l.Complete {
			oldest = max(oldest, time.Since(l.At))
		}
	}
	return oldest
}

// Check asks Run to begin its next round now, because something has changed.
func (c *Conn) Check() { wake(c.check) }

// wake puts a token into a channel that holds one, unless it has one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
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
		c.noteCall(call, err)
	} else if c.plan.Changes(call.Method) {
		c.noteRefusal()
	}
	if err == nil && call.Method != c.cfg.Alive {
		c.answered()
	}
	return err
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
		if !errors.Is(err, io.EOF) {
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
