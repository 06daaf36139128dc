package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// A Link is a configuration of a [Backend], with its connection. A call uses the same link from its beginning to its end. One
// that another link has replaced only serves the calls under way: it makes no requests of its own, and what it notices says
// nothing about the backend. Links have generations: each has the number of the one before it, plus one.
//
//	state      begins with                    requests of its own  changes the condition  ends its calls
//	staged     Stage                          no                   no                     -
//	current    Commit                         yes                  yes                    when the backend goes
//	replaced   the next Commit, or Retire     no                   no                     when the backend is silent on it
//	ended      End: no call uses it any more  no                   no                     -
//
// An epoch of a link is the time in which its backend answers: it ends when the backend goes, and with it all calls of the epoch.
// A list that was asked for in an earlier epoch is not cached: the runtime may have been restarted since.
type Link struct {
	backend *Backend
	cfg     Config
	next    codec.Caller
	plan    *inventory.Plan
	lists   []*list
	gates   []*list // those that are gates
	cached  []*cachedMethod
	lags    []*lag
	roles   map[string]role // :: full method
	pulse   pulse

	unasked bool // see Unasked: the configuration may name HealthCheck itself

	// Commit sets the fields below.
	generation uint64
	serving    context.Context // ends when another link replaces this one, or the backend is taken away
	endService context.CancelFunc
	used       context.Context // ends with End, and with Backend.life
	release    context.CancelFunc

	// Backend.mu guards the fields below.
	epoch              context.Context // the time since the backend came back; ends when the backend goes
	endEpoch           context.CancelCauseFunc
	silenceLimit       time.Duration // how long it may be silent: Silence, or more if it is known to answer that late
	probeTime          time.Duration // how long the next call of Alive may take while it is gone
	probing            bool          // Alive is under way
	refreshingStatuses bool          // statuses are being asked for
	down               bool          // with Config.Pass: there is no connection
	answers            uint64        // with Config.Pass: of pulse, when the backend went
}

// list joins what a Link has of one list of its Spec: how to read it, what the backend last said, and how long it takes to answer.
// It belongs to the Link; what the backend last said is the Inventory's, and the next link's list has it, too.
type list struct {
	*inventory.ListPlan
	*inventory.Listing // of the Inventory, from Commit on; Backend.mu guards it, and the fields below

	lag       lag
	statusLag lag    // of the statuses of its items
	latest    uint64 // the number of the latest request in the background
	round     *round // the latest list for look-ups, perhaps one that has not begun yet; nil: none
}

// role says what the cache does about a method. The zero role is that of a method that only passes.
type role struct {
	list   *list         // it returns this list
	cached *cachedMethod // its reply is kept
	status *list         // its reply is the status of an item of this list
}

// Stage returns a link for the Backend, and changes nothing before the caller commits the link. A cache that could not be read
// is no error of Stage: the backend's lists fail, and say why, until the backend has answered.
func (b *Backend) Stage(cfg Config) (*Link, error) {
	switch {
	case cfg.Policy == "":
		cfg.Policy = LastKnown
	case cfg.Policy != LastKnown && cfg.Policy != Fail && cfg.Policy != Skip:
		return nil, fmt.Errorf("invalid policy %q: want %q, %q or %q", cfg.Policy, LastKnown, Fail, Skip)
	}
	cfg.Budget = cmp.Or(cfg.Budget, DefaultBudget)
	cfg.Silence = max(cmp.Or(cfg.Silence, DefaultSilence), cfg.Budget)
	cfg.Interval = cmp.Or(cfg.Interval, DefaultInterval)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	if cfg.Pass {
		cfg.Alive = cmp.Or(cfg.Alive, HealthCheck)
		return &Link{backend: b, cfg: cfg, next: cfg.Next, plan: &inventory.Plan{}, silenceLimit: cfg.Silence}, nil
	}
	plan, err := inventory.Compile(cfg.Spec, cfg.Schema, cfg.Package, cfg.Equivalents)
	if err != nil {
		return nil, err
	}
	c := &Link{backend: b, cfg: cfg, next: cfg.Next, plan: plan, roles: map[string]role{}, silenceLimit: cfg.Silence}
	for _, m := range cfg.Schema.Methods() {
		if strings.HasPrefix(m.Name, "/"+cfg.Package+".") {
			c.roles[m.Name] = role{}
		}
	}
	for _, p := range plan.Lists {
		l := &list{ListPlan: p}
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
		k := &cachedMethod{ReplyPlan: p}
		c.cached = append(c.cached, k)
		c.addLag(&k.lag, p.Method.Name)
		c.roles[p.Method.Name] = role{cached: k}
	}
	if cfg.Alive == "" && len(c.gates) == 0 {
		c.cfg.Alive, c.unasked = HealthCheck, true
	}
	return c, nil
}

// addLag makes g the lag of a method.
func (c *Link) addLag(g *lag, method string) {
	g.method = method
	c.lags = append(c.lags, g)
}

// Commit makes the Backend use the link from the next call on, in place of the one before it. The condition goes on: a backend
// that is gone is asked at once whether it is back, and methods that were late still are. Commit cannot fail: lists that the
// new configuration cannot read are unknown, and fail until the backend has answered them.
func (c *Link) Commit() {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if c.cfg.Pass { // what is cached would be stale when the backend is one of several again
		c.backend.inv, c.backend.listedSinceBoot, c.backend.answeredSinceBoot, c.backend.unsure = inventory.New(), false, false, nil
		clear(c.backend.late)
	}
	if err := c.backend.inv.Use(c.plan); err != nil {
		c.backend.listedSinceBoot, c.backend.unsure = false, brokenError(c.backend.file.Path, err) // lists fail: there may have been items
	}
	for _, l := range c.lists {
		l.Listing = c.backend.inv.List(l.ListPlan)
	}
	for _, g := range c.lags {
		if why, ok := c.backend.late[g.method]; ok {
			g.why, g.before = errors.New(why), true
		}
	}
	c.serving, c.endService = context.WithCancel(context.Background())
	c.used, c.release = context.WithCancel(c.backend.life)
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	if before := c.backend.current.Load(); before != nil {
		c.generation = before.generation + 1
		before.retire()
	}
	c.backend.current.Store(c)
	c.backend.hopeless = false
	switch why := c.whyLate(); {
	case c.backend.notified || c.backend.state.Condition == Gone:
		c.reconsider()
	case c.cfg.Before.Condition == Gone && (c.cfg.Pass || c.backend.listedSinceBoot): // it was so for the previous process, as below
		c.backend.state, c.backend.back = c.cfg.Before, make(chan struct{})
	case why != nil:
		c.backend.state = State{Condition: Slow, Since: time.Now(), Err: why}
	default:
		c.backend.state = State{Since: time.Now()}
	}
	c.backend.Check()
}

// replaced reports whether the link only serves the calls under way.
func (c *Link) replaced() bool { return c.serving.Err() != nil }

// Retire is for a link that none replaces, because the backend is taken away: see [Link]. Watch is called no more.
func (c *Link) Retire() {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	c.retire()
}

// retire is Retire for a link that another one replaces. mu is held.
func (c *Link) retire() {
	if c.replaced() {
		return
	}
	c.endService()
	if c.backend.life.Err() == nil { // otherwise Run has ended, and waits for nothing that begins now
		c.backend.background.Go(func() { c.backend.do("ending calls to", c.drain) })
	}
}

// drain ends the calls that use a replaced link if the backend answers none of them, until no call uses it.
func (c *Link) drain() {
	for sleep(c.used, c.cfg.Interval, nil) {
		c.backend.mu.Lock()
		c.checkSilence()
		c.backend.mu.Unlock()
	}
}

// End says that no call uses the link any more. If the backend has no other one, Run ends.
func (c *Link) End() {
	c.release()
	if c.backend.current.Load() == c {
		c.backend.end()
	}
}

// Call makes a unary call, on the link that is current when it begins: a call that the cache can answer in one of three ways,
// and any other one only while the backend is not gone. Of a call that reached the backend, the cache then knows that it may
// have changed something, also if it failed.
func (b *Backend) Call(ctx context.Context, call *codec.Call) error {
	c := b.current.Load()
	if c.cfg.Pass {
		return c.pulse.count(ctx, func(ctx context.Context) error { return c.next.Call(ctx, call) })
	}
	r, described := c.roles[call.Method]
	switch {
	case !described:
		return c.next.Call(ctx, call) // the Spec does not name it
	case r.list != nil:
		return c.onNextLink(ctx, call, c.list(ctx, r.list, call))
	case r.cached != nil:
		return c.onNextLink(ctx, call, c.callCached(ctx, r.cached, call))
	case r.status != nil:
		return c.onNextLink(ctx, call, c.statusOf(ctx, r.status, call))
	}
	sent := false // a call that never reached the backend has changed nothing
	err := c.call(ctx, func(ctx context.Context) error {
		sent = true
		return c.next.Call(ctx, call)
	})
	if sent {
		c.noteCall(call, err)
	} else if c.plan.Changes(call.Method) {
		b.noteRefusal()
	}
	if err == nil && call.Method != c.cfg.Alive {
		b.answered()
	}
	return err
}

// onNextLink repeats a call that changes nothing on the link that has replaced c, if it failed with err because c was lost.
func (c *Link) onNextLink(ctx context.Context, call *codec.Call, err error) error {
	next := c.backend.current.Load()
	if err == nil || next == c || next.cfg.Pass {
		return err
	}
	c.backend.mu.Lock()
	lost := c.epoch.Err() != nil
	c.backend.mu.Unlock()
	if lost {
		return c.backend.Call(ctx, call)
	}
	return err
}

// Open opens a streaming call, which keeps the link that is current now. A list in several messages is answered as a list; any
// other stream ends when the backend goes.
func (b *Backend) Open(ctx context.Context, desc *grpc.StreamDesc, name string, first *codec.Frame) (codec.Stream, error) {
	c := b.current.Load()
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
	return &guardedStream{Stream: s, link: c, epoch: epoch, end: cancel}, nil
}

// guardedStream is a stream that ends when its backend goes. It belongs to whoever receives from it, who must receive until an
// error comes, or end the context of the call.
type guardedStream struct {
	codec.Stream
	link  *Link
	epoch context.Context
	end   func()
}

// Recv returns the next message. An error may show that the backend is gone.
func (s *guardedStream) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if err != nil {
		defer s.end()
		if !errors.Is(err, io.EOF) {
			err = s.link.judge(s.epoch, err)
		}
	}
	return f, err
}

// mark marks the answer to a method as one from the cache, for the caller of ctx. mu may be held.
func (c *Link) mark(ctx context.Context, method string, call *codec.Call) {
	call.Header = metadata.Pairs(HeaderKey, c.cfg.Name)
	if c.cfg.CacheHit != nil {
		c.cfg.CacheHit(ctx, method)
	}
}
