package lastknown

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// comeBack asks a backend that is gone whether it is there again, and for its gates. It
// is up from those answers on. One that is alive, but does not answer its gates in time,
// is slow. comeBack reports whether it is either.
func (c *Conn) comeBack(ctx context.Context) bool {
	c.mu.Lock()
	retired := c.retired
	c.mu.Unlock()
	if retired { // nobody needs it any more
		return false
	}
	bound := mostPatience
	var dead error
	if c.cfg.Alive != "" {
		if dead = c.isAlive(ctx); unreachable(dead) || status.Code(dead) == codes.DeadlineExceeded || ctx.Err() != nil {
			c.stillGone(dead)
			return false
		}
		bound = c.cfg.Budget // what takes longer goes on behind the scenes
	}
	gates := c.askGates(ctx, bound)
	if dead != nil && !slices.ContainsFunc(gates, func(g *gateAnswer) bool { return g.err == nil }) {
		c.stillGone(dead) // it answers every call with an error
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range gates {
		defer g.answer.Free()
		if ctx.Err() != nil || c.retired || g.err != nil && (c.cfg.Alive == "" || unreachable(g.err)) {
			c.state.Err = c.reason(errors.Join(g.err, ctx.Err()))
			return false
		}
	}
	c.beginEpoch()
	var why error
	for _, g := range gates {
		switch {
		case g.err != nil && status.Code(g.err) != codes.Canceled:
			g.list.lag.failing = true
			c.setLate(&g.list.lag, failedError(g.list.anyMethod().Name, g.err))
		case g.err != nil, g.took > c.cfg.Budget:
			c.setLate(&g.list.lag, lateError(g.list.anyMethod().Name, c.cfg.Budget))
		}
		if g.err == nil {
			g.list.observe(g.seq, g.at, g.answer)
		}
		if why == nil {
			why = g.list.lag.why
		}
	}
	c.mem.gone = false
	c.seeLocked()
	if why != nil {
		c.become(Slow, why)
	} else {
		c.become(Up, nil)
	}
	close(c.back)
	c.Check()
	return true
}

// beginEpoch begins the time of a backend that has come back, perhaps as another version.
// c.mu is held.
func (c *Conn) beginEpoch() {
	for _, g := range c.lags {
		g.inTime, g.failing = 0, false
		c.setLate(g, nil)
	}
	for _, l := range c.lists {
		if !l.spec.Gate {
			l.touch()
		}
	}
	for _, k := range c.kept {
		k.lag.asked = time.Time{}
	}
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	c.silent = false
	c.pulse.answers.Add(1) // the silence that made it gone is over
}

// isAlive asks the backend whether it is there at all. One that takes its time for that,
// and not because a hang ends just now, is given as much in future before it counts as
// gone.
func (c *Conn) isAlive(ctx context.Context) error {
	c.mu.Lock()
	bound := max(c.probeTime, c.patience)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	ask := func() (took time.Duration, err error) {
		began := time.Now()
		err = c.next.Invoke(ctx, c.cfg.Alive, &codec.Frame{}, &codec.Frame{})
		return time.Since(began), err
	}
	took, err := ask()
	if err == nil && took > c.cfg.Silence { // it waited for the end of a hang, perhaps
		took, err = ask()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil: // the next attempt waits longer: it may answer that late
		c.probeTime = min(2*bound, mostPatience)
	case err == nil:
		c.probeTime = 0
		if took > c.patience {
			c.patience = min(2*took, mostPatience)
		}
	}
	return err
}

// stillGone keeps the latest reason, which may be nearer to the truth than the first.
func (c *Conn) stillGone(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case status.Code(err) == codes.Canceled, status.Code(err) == codes.DeadlineExceeded:
		return // that says less
	case unreachable(err):
		c.silent = false
		c.state.Err = c.reason(err)
	default:
		c.state.Err = failedError(c.cfg.Alive, err)
	}
}

// gateAnswer is what a gate was answered with.
type gateAnswer struct {
	list   *list
	answer *codec.Frame
	err    error
	seq    uint64
	at     time.Time
	took   time.Duration
}

// askGates asks for all gates at once, each for at most bound, after which it is
// Canceled.
func (c *Conn) askGates(ctx context.Context, bound time.Duration) []*gateAnswer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(bound, cancel).Stop()
	var gates []*gateAnswer
	var wg sync.WaitGroup
	for _, l := range c.lists {
		if !l.spec.Gate {
			continue
		}
		g := &gateAnswer{list: l, answer: &codec.Frame{}, at: time.Now()}
		gates = append(gates, g)
		c.mu.Lock()
		g.seq = l.begin()
		c.mu.Unlock()
		wg.Go(func() {
			g.err = c.cfg.Panicked.Do(l.anyMethod().Name, func() error {
				answer, _, err := c.fetch(ctx, l, l.anyMethod().Name, &codec.Frame{}, nil)
				if err == nil {
					g.answer = answer
				}
				return err
			})
			g.took = time.Since(g.at)
		})
	}
	wg.Wait()
	return gates
}

// seeLocked takes note, once, that the backend has been seen. One gate that is
// remembered is enough: those that are not are Unavailable while the backend is gone, and
// not empty. c.mu is held.
func (c *Conn) seeLocked() {
	gated, complete := false, false
	for _, l := range c.lists {
		gated = gated || l.spec.Gate
		complete = complete || l.spec.Gate && l.complete
	}
	if (complete || !gated) && (!c.mem.seen || c.mem.unsure != nil) {
		c.mem.seen, c.mem.unsure, c.mem.news = true, nil, true
		c.state.Seen = true
	}
}
