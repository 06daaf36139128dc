package known

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/contain"
)

const (
	// firstWait and lastWait are the pauses between attempts to find a backend
	// back: those of kubelet, when it reconnects.
	firstWait = 100 * time.Millisecond
	lastWait  = 3 * time.Second

	// breath is the least time between two rounds, however much changes.
	breath = 50 * time.Millisecond
)

// Run looks after the backend until ctx ends: it asks for what no client asked
// for, finds out when the backend is gone or back, and keeps the file. It returns
// when all it started has ended.
func (c *Conn) Run(ctx context.Context) error {
	rounds := make(chan struct{}, 1)
	var writer sync.WaitGroup
	writer.Go(func() { // beside the rounds: a disk that hangs must not keep a backend from being found back
		for range rounds {
			_ = contain.Run("keeping what is known of backend "+c.cfg.Name, c.saveNews) // told there; it is tried after the next round
		}
	})
	wait := firstWait
	for {
		next := c.cfg.Interval
		_ = contain.Run("looking after backend "+c.cfg.Name, func() { // told there; the next round comes
			if c.State().Up {
				c.refresh(ctx)
				wait = firstWait
			} else if !c.comeUp(ctx) {
				next, wait = wait, min(wait*2, lastWait)
			}
		})
		select {
		case rounds <- struct{}{}:
		default: // it is behind, and will see what this round has found as well
		}
		if !sleep(ctx, breath, nil) || !sleep(ctx, next-breath, c.check) {
			close(rounds)
			writer.Wait()
			return c.Save()
		}
	}
}

// sleep waits for d or until it is woken, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// refresh asks for the lists that nobody has asked for lately, or that have
// changed, and for the status of what has changed in them.
func (c *Conn) refresh(ctx context.Context) {
	for _, l := range c.lists {
		c.mu.Lock()
		due := l.spec.Every > 0 && (!l.complete || l.dirty() || older(l.at, l.spec.Every))
		c.mu.Unlock()
		if due {
			c.renew(ctx, l)
		}
		if !c.State().Up || ctx.Err() != nil {
			return
		}
		c.follow(ctx, l)
	}
	c.sawIt()
	for _, k := range c.kept {
		c.mu.Lock()
		due := k.spec.Every > 0 && time.Since(k.at) >= k.spec.Every
		if due {
			k.at = time.Now() // also where it fails: a backend need not have the method
		}
		c.mu.Unlock()
		if due {
			_ = c.keptReply(ctx, k, k.method.Name, &codec.Frame{}, &codec.Frame{}, nil)
		}
	}
	c.bound()
}

// older reports whether a time is longer ago than d, or is to come: the clock was set back.
func older(at time.Time, d time.Duration) bool {
	since := time.Since(at)
	return since < 0 || since >= d
}

// answered is what a list was answered with.
type answered struct {
	list   *list
	answer *codec.Frame
	seq    uint64
	at     time.Time
}

// comeUp asks a backend that is down for all that has to be known of it, and
// marks it up if all is answered. It is up from those answers on.
func (c *Conn) comeUp(ctx context.Context) bool {
	var all []answered
	for _, l := range c.lists {
		if !l.spec.Gate {
			continue
		}
		c.mu.Lock()
		seq, at := l.begin(), time.Now()
		c.mu.Unlock()
		within, cancel := c.withBudget(ctx)
		answer, err := c.fetch(within, l, l.anyMethod().Name, &codec.Frame{}, nil)
		cancel(nil)
		if err != nil {
			c.stillDown(err)
			return false
		}
		all = append(all, answered{l, answer, seq, at})
	}
	c.isUp(all)
	c.refresh(ctx)
	return true
}

// isUp marks the backend up, with what it answered.
func (c *Conn) isUp(all []answered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range all {
		a.list.observe(a.seq, a.at, a.answer)
		a.answer.Free()
	}
	for _, l := range c.lists {
		if !l.spec.Gate {
			l.touch()
		}
	}
	for _, k := range c.kept {
		k.at = time.Time{} // who comes back may be another version
	}
	c.epoch, c.endEpoch = context.WithCancelCause(context.Background())
	c.state = State{Up: true, Since: time.Now(), Seen: c.state.Seen}
	c.seeLocked()
	if c.cfg.Watch != nil {
		c.cfg.Watch(c.state)
	}
}

// stillDown keeps the latest reason, which may be nearer to the truth than the
// first.
func (c *Conn) stillDown(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if status.Code(err) == codes.Canceled {
		return // over its budget: that says less than what is known
	}
	c.state.Err = c.reason(err)
}

// sawIt takes note, once, that the backend has been seen on this node.
func (c *Conn) sawIt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seeLocked()
}

// seeLocked is sawIt, c.mu being held. One gate that is known is enough: those that are not
// are Unavailable while the backend is down, and not empty.
func (c *Conn) seeLocked() {
	gated, known := false, false
	for _, l := range c.lists {
		gated = gated || l.spec.Gate
		known = known || l.spec.Gate && l.complete
	}
	if known || !gated {
		c.setSeen()
	}
}

// setSeen takes note, once, that the backend has been seen. c.mu is held.
func (c *Conn) setSeen() {
	if c.state.Seen {
		return
	}
	c.state.Seen, c.unsure, c.news = true, nil, true
	close(c.seen)
}

// followers is how many status calls may be under way at once.
const followers = 4

// follow asks for the status of items that are new or have changed. All of them
// together have the budget of one list: the lists, by which it is noticed that a
// backend hangs, come round again. What was not answered is asked for then. After a
// call there is a pause of the same length, but for slow ones, for clients: when a process
// starts, there are as many calls as there are containers, and a kubelet that waits.
func (c *Conn) follow(ctx context.Context, l *list) {
	changed := c.unfollowed(l)
	if len(changed) == 0 {
		return
	}
	ctx, cancel := c.withBudget(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	ids := make(chan string)
	for range min(followers, len(changed)) {
		wg.Go(func() {
			for id := range ids {
				began := time.Now()
				_ = contain.Run(l.status.method.Name, func() { c.askStatus(ctx, l, id) }) // told there; it is asked for again
				sleep(ctx, min(time.Since(began), breath), nil)
			}
		})
	}
	for _, id := range changed {
		if ctx.Err() == nil {
			ids <- id
		}
	}
	close(ids)
	wg.Wait()
}

// unfollowed returns the items whose status is to be asked for.
func (c *Conn) unfollowed(l *list) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.settle()
	var changed []string
	if l.asksStatus() && c.bytes() < c.cfg.MaxBytes {
		for id := range l.items.place { // in no order: one that never answers keeps back nobody for ever
			if l.stale[id] || l.statuses[id] == nil {
				changed = append(changed, id)
			}
		}
	}
	return changed
}

func (c *Conn) askStatus(ctx context.Context, l *list, id string) {
	item := c.item(l, id)
	answer := &codec.Frame{}
	err := c.call(ctx, func(ctx context.Context) error {
		return c.next.Invoke(ctx, l.status.method.Name, codec.NewFrame(l.status.id.Append(nil, []byte(id))), answer)
	})
	if err == nil {
		c.keep(l, id, item, answer)
		answer.Free()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, listed := l.items.get(id); listed && isTheCallsOwn(err) {
		l.statuses[id] = []byte{} // it has none; it is asked for again when the item changes
		delete(l.stale, id)
	}
}

// bound keeps what is known within its limit: first statuses go, which are asked
// for again when there is room, then whole lists, which then fail in an outage.
func (c *Conn) bound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes() <= c.cfg.MaxBytes {
		return
	}
	for _, l := range c.lists {
		clear(l.statuses)
	}
	for i := len(c.lists) - 1; i >= 0 && c.bytes() > c.cfg.MaxBytes; i-- {
		l := c.lists[i]
		l.settle()
		l.items, l.complete, l.news = items{}, false, true
	}
}
