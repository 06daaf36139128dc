package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// comeBack asks a backend that is gone for its gates, after asking Alive, and reports whether it is up or slow: see [Condition].
// A backend without gates is up when it answers Alive, with any status: that it accepts connections proves nothing.
//
// The answers to the gates are in the cache before any call reaches the backend again, so the first list after the return lacks
// nothing. The condition changes only after a pause in which no change was refused: see lockAfterRefusals.
func (c *Link) comeBack(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.serving, cancel)() // another link asks the backend
	bound := maxSilence
	var dead error
	if c.cfg.Alive != "" {
		if dead = c.isAlive(ctx); unreachable(dead) || status.Code(dead) == codes.DeadlineExceeded || ctx.Err() != nil {
			c.stillGone(dead)
			return false
		}
		if len(c.gates) == 0 && !ours(dead) {
			dead = nil
		}
		bound = c.cfg.Budget // what takes longer goes on in the background
	}
	gates := c.askGates(ctx, bound)
	if dead != nil && !slices.ContainsFunc(gates, func(g *gateAnswer) bool { return g.err == nil }) {
		c.stillGone(dead) // it answers every call with an error
		return false
	}
	c.lockAfterRefusals(ctx)
	defer c.backend.mu.Unlock()
	if c.replaced() {
		return false
	}
	for _, g := range gates {
		defer g.answer.Free()
		if ctx.Err() != nil || g.err != nil && (c.cfg.Alive == "" || unreachable(g.err)) {
			c.backend.state.Err = c.reason(errors.Join(g.err, ctx.Err()))
			return false
		}
	}
	c.beginEpoch()
	for _, g := range gates {
		switch {
		case g.err != nil && status.Code(g.err) != codes.Canceled:
			g.list.lag.failing = true
			c.setLate(&g.list.lag, failedError(g.list.Method().Name, g.err))
		case g.err != nil, g.took > c.cfg.Budget:
			c.setLate(&g.list.lag, lateError(g.list.Method().Name, c.cfg.Budget))
		}
		if g.err == nil {
			g.list.Observe(g.seq, g.at, g.answer)
		}
	}
	c.noteListed()
	if why := c.whyLate(); why != nil {
		c.become(Slow, why)
	} else {
		c.become(Up, nil)
	}
	close(c.backend.back)
	c.backend.Check()
	return true
}

// lockAfterRefusals locks mu once no change has been refused for the time refusalGrace. A caller whose change
// was refused may be halfway through a sequence of calls, which must fail as a whole: it may make
// the last call of it whatever the others returned, within milliseconds.
func (c *Link) lockAfterRefusals(ctx context.Context) {
	end := time.Now().Add(maxRefusalGrace)
	for {
		c.backend.mu.Lock()
		wait := min(time.Until(c.backend.refused.Add(refusalGrace)), time.Until(end))
		if wait <= 0 || ctx.Err() != nil {
			return
		}
		c.backend.mu.Unlock()
		sleep(ctx, wait, nil)
	}
}

// noteRefusal notes that a change was refused because the backend is gone.
func (b *Backend) noteRefusal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused = time.Now()
}

// beginEpoch begins a new epoch: the backend has come back, perhaps as another version of it. No method is late, and no list
// but the gates, which were just asked for, shows what happened meanwhile. mu is held.
func (c *Link) beginEpoch() {
	for _, g := range c.lags {
		g.inTime, g.failing, g.firstError = 0, false, 0
		c.setLate(g, nil)
	}
	for _, l := range c.lists {
		if !l.Spec.Gate {
			l.Invalidate(time.Now())
		}
	}
	for _, k := range c.cached {
		k.lag.asked = time.Time{}
	}
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	c.backend.hopeless = false
	c.pulse.answers.Add(1) // the silence that made it gone is over
}

// isAlive calls Alive. If the backend is slow to answer even that, and not because a hang has
// just ended, isAlive raises c.silenceLimit, so that it counts as gone only after a longer silence.
func (c *Link) isAlive(ctx context.Context) error {
	c.backend.mu.Lock()
	bound := max(c.probeTime, c.silenceLimit)
	c.backend.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	ask := func() (took time.Duration, err error) {
		began := time.Now()
		err = c.callAlive(ctx)
		return time.Since(began), err
	}
	took, err := ask()
	if err == nil && took > c.cfg.Silence { // perhaps it hung and that is over: measure again
		took, err = ask()
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil: // it may answer later than that: wait longer next time
		c.probeTime = min(2*bound, maxSilence)
	case err == nil:
		c.probeTime = 0
		if took > c.silenceLimit {
			c.silenceLimit = min(2*took, maxSilence)
		}
	}
	return err
}

// callAlive calls Alive once.
func (c *Link) callAlive(ctx context.Context) error {
	return c.next.Call(ctx, &codec.Call{Method: c.cfg.Alive, Request: &codec.Frame{}})
}

// stillGone notifies Watch of the latest reason why the backend is gone, which may be more precise than the first, or, for the
// first time, that it is gone as it was for an earlier process.
func (c *Link) stillGone(err error) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	was := c.backend.state.Err
	switch {
	case c.replaced():
		return // another link knows better
	case err == nil, status.Code(err) == codes.Canceled:
		return
	case status.Code(err) == codes.DeadlineExceeded: // that is less precise than what there is
	case unreachable(err):
		c.backend.hopeless = false
		c.backend.state.Err = c.reason(err)
	default:
		useless := mustBeMended(err)
		if useless && !c.backend.hopeless { // lists that wait for it look again
			close(c.backend.back)
			c.backend.back = make(chan struct{})
		}
		c.backend.hopeless = useless
		c.backend.state.Err = failedError(c.cfg.Alive, err)
	}
	if !c.backend.notified || fmt.Sprint(was) != fmt.Sprint(c.backend.state.Err) {
		c.backend.notifyState()
	}
}

// gateAnswer is the backend's answer to one gate. The goroutine that asks writes it, and comeBack reads it once all have ended.
type gateAnswer struct {
	list   *list
	answer *codec.Frame
	err    error
	seq    uint64
	at     time.Time
	took   time.Duration
}

// askGates asks for all gates at once. After bound it cancels those that have not been answered.
func (c *Link) askGates(ctx context.Context, bound time.Duration) []*gateAnswer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(bound, cancel).Stop()
	var gates []*gateAnswer
	var wg sync.WaitGroup
	for _, l := range c.gates {
		g := &gateAnswer{list: l, answer: &codec.Frame{}, at: time.Now()}
		gates = append(gates, g)
		c.backend.mu.Lock()
		g.seq = c.backend.inv.Begin()
		c.backend.mu.Unlock()
		wg.Go(func() {
			g.err = c.cfg.Panicked.Do(l.Method().Name, func() error {
				call := &codec.Call{Method: l.Method().Name, Request: &codec.Frame{}}
				err := c.fetch(ctx, l, call)
				if err != nil && ctx.Err() == nil && !ours(err) && !unreachable(err) { // see fails
					err = c.fetch(ctx, l, call)
				}
				if err == nil {
					g.answer = call.Reply
				}
				return err
			})
			g.took = time.Since(g.at)
		})
	}
	wg.Wait()
	return gates
}

// noteListed notes, once, that the backend has answered a list. One complete gate is enough: the other gates then fail with
// Unavailable while the backend is gone, and are not taken to be empty. mu is held.
func (c *Link) noteListed() {
	complete := slices.ContainsFunc(c.gates, func(l *list) bool { return l.Complete })
	if (complete || len(c.gates) == 0) && (!c.backend.listedSinceBoot || c.backend.unsure != nil) {
		c.backend.listedSinceBoot, c.backend.unsure, c.backend.news = true, nil, true
	}
}
