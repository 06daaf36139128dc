package backend

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/status"
)

// An attempt is a call to the backend. It ends with its epoch, and the cache may answer in its place if usable is set and says so.
// It belongs to the goroutine of the call, which makes it and waits for it; timers, and whoever learns of an answer, may end it. It
// goes through these states, never back:
//
//	state      until                                       the cache answers if
//	under way  the backend answers, or the budget is used  -
//	overdue    the time long has passed                    its answer has every change that the client may know of
//	long       the client leaves                           it has any answer
//	ended      -                                           -
type attempt struct {
	method string
	lag    *lag
	list   *list // the list that it asks for; nil if it asks for something else
	// usable reports whether the cache has the answer. If long is set, it may be older than a change that a client made: the call
	// has waited for long. Backend.mu is held.
	usable func(long bool) bool
	// anyAnswer says that an error counts as an answer in time, as with statuses: it is about
	// the item, and not about how the backend is doing.
	anyAnswer bool
	// spent is what earlier requests for the same call of a client have used of its budget.
	spent time.Duration

	epoch  context.Context // that it belongs to
	cancel context.CancelCauseFunc

	// Backend.mu guards the fields below.
	index   int         // of Backend.attempts; -1: it has ended
	overdue bool        // it has used up its budget
	late    bool        // and its budget was Config.Budget, not less because of earlier requests or a client in a hurry
	long    bool        // it has taken so long that an old answer is better than none
	timer   *time.Timer // sets long
}

// errUseCache ends an attempt: the cache answers in its place.
var errUseCache = errors.New("the cache has the answer")

// begin makes an attempt one of those under way, unless the backend is gone. The caller makes its call with the context that begin
// returns, and calls end.
func (c *Link) begin(ctx context.Context, a *attempt) (context.Context, error) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if c.backend.state.Condition == Gone {
		return nil, c.unavailable()
	}
	ctx, a.cancel = context.WithCancelCause(ctx)
	if a.epoch = c.epoch; a.epoch.Err() != nil {
		a.cancel(context.Cause(a.epoch))
	}
	a.index = len(c.backend.attempts)
	c.backend.attempts = append(c.backend.attempts, a)
	return ctx, nil
}

// end ends an attempt, also one that has panicked. answered says that an answer came, which is in time unless the attempt is late.
func (c *Link) end(a *attempt, answered bool) {
	b := c.backend
	b.mu.Lock()
	last := len(b.attempts) - 1
	b.attempts[a.index], b.attempts[last].index = b.attempts[last], a.index
	b.attempts[last], b.attempts = nil, b.attempts[:last]
	a.index = -1
	if a.timer != nil {
		a.timer.Stop()
	}
	if answered && !a.late {
		c.markOnTime(a.lag)
	}
	b.mu.Unlock()
	a.cancel(nil)
}

// call calls f, which asks the backend, unless the backend is gone. It cancels f if the backend goes.
func (c *Link) call(ctx context.Context, f func(context.Context) error) error {
	a := &attempt{}
	ctx, err := c.begin(ctx, a)
	if err != nil {
		return err
	}
	defer c.end(a, false)
	return c.judge(a.epoch, c.pulse.count(ctx, f))
}

// try calls f, which asks the backend. Once f has used up its budget, its method is late, and when the cache has the answer, try
// returns errUseCache. Otherwise f goes on until the client's time is over. If f is nil, another goroutine asks the backend,
// and try only waits until the cache has the answer.
//
// A backend that goes ends f at once, with its epoch. try returns after f, never before.
func (c *Link) try(ctx context.Context, a *attempt, f func(context.Context) error) error {
	ctx, err := c.begin(ctx, a)
	if err != nil {
		return err
	}
	answered := false
	defer func() { c.end(a, answered) }()

	if f == nil {
		c.backend.mu.Lock()
		c.wait(a, c.cfg.Silence)
		c.backend.mu.Unlock()
		<-ctx.Done()
		err = status.FromContextError(ctx.Err()).Err()
	} else {
		budget := c.cfg.Budget - a.spent
		if deadline, ok := ctx.Deadline(); ok { // a client in a hurry gets its answer before it leaves
			budget = min(budget, time.Until(deadline)*3/4)
		}
		timer := time.AfterFunc(budget, func() { c.overdue(a, budget) })
		defer timer.Stop()
		err = c.pulse.count(ctx, f)
	}
	answered = err == nil || a.anyAnswer && ctx.Err() == nil && !unreachable(err)
	if err != nil && context.Cause(ctx) == errUseCache {
		return errUseCache
	}
	return c.judge(a.epoch, err)
}

// wait ends an attempt as soon as the cache has its answer; after the time long an old one suffices. mu is held.
func (c *Link) wait(a *attempt, long time.Duration) {
	a.overdue = true
	if a.list != nil { // the time counts from the change that the answer must show
		long = max(0, min(long, time.Until(a.list.StaleSince.Add(c.cfg.Silence))))
	}
	a.timer = time.AfterFunc(long, func() {
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		a.long = true
		c.useCache(a)
	})
	c.useCache(a)
}

// overdue notes that an attempt has used up its budget.
func (c *Link) overdue(a *attempt, budget time.Duration) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if a.index < 0 {
		return
	}
	if budget == c.cfg.Budget {
		a.late = true
		c.markLate(a.lag, lateError(a.method, budget))
	}
	c.wait(a, c.cfg.Silence-a.spent-budget)
}

// wakeWaiting ends the calls in whose place the cache can answer by now. Whoever puts an answer into the cache calls it. mu is
// held.
func (c *Link) wakeWaiting() {
	for _, a := range c.backend.attempts {
		c.useCache(a)
	}
}

// useCache ends a call if the cache can answer in its place. mu is held.
func (c *Link) useCache(a *attempt) {
	if a.index >= 0 && a.overdue && a.usable(a.long) {
		a.cancel(errUseCache)
	}
}
