package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// list answers a list, from the backend if that answers within its budget, otherwise from the cache.
// The call is of the unary or of the streaming method; both have the same request.
//
// An error of the backend about the whole list is its own trouble: it must not fail the lists of all backends. So the client gets
// an error only if its own request is at fault, if a limit of this process is, or if the cache does not know the items.
func (c *Link) list(ctx context.Context, l *list, call *codec.Call) error {
	now, soon, usable := c.answersFor(l)
	if now {
		return c.fromCache(ctx, l, call)
	}
	began := time.Now()
	var err error
	if soon {
		err = c.try(ctx, &attempt{lag: &l.lag, list: l, usable: usable}, nil)
	} else {
		err = c.ask(ctx, l, call, usable, 0)
	}
	if errors.Is(err, errCameBack) {
		err = c.ask(ctx, l, call, usable, time.Since(began))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errUseCache):
		return c.fromCache(ctx, l, call)
	case ended(ctx), ours(err), aboutTheRequest(err) && !l.Unfiltered(call.Request.Bytes()):
		return err
	case c.backend.State().Condition == Gone:
		return c.listOfGone(ctx, l, call, err)
	}
	return c.listInstead(ctx, l, call, err)
}

// answersFor decides what to do about a list with which the backend is late. now: the cache answers at once. soon: a client has
// changed something, and the cache answers when the backend has answered a request that answersFor makes in the background.
// Neither: the caller asks the backend. usable is [Link.usableList] for a call that begins now.
func (c *Link) answersFor(l *list) (now, soon bool, usable func(long bool) bool) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	usable = c.usableList(l)
	if c.backend.state.Condition == Gone || !l.lag.late() || c.replaced() || c.cfg.Policy != LastKnown {
		return false, false, usable // with Skip and Fail, the answer of each call decides
	}
	c.updateInBackground(l)
	now = usable(false)
	return now, !now && l.Complete && !l.lag.failing, usable
}

// usableList returns a function that reports whether the cache has the answer to a list that begins now: the whole list, with
// every change that a client knew of before the call, unless that was Silence ago. A change that failed, or whose call is still
// under way, need not be there: no client knows whether the backend has made it. An optional list may be empty, so that a late
// backend does not delay the others. mu is held.
func (c *Link) usableList(l *list) func(long bool) bool {
	invalidated := l.Invalidated
	return func(long bool) bool {
		has := l.Complete && (long || l.Shows(invalidated) || older(l.StaleSince, c.cfg.Silence)) || l.Spec.Optional && !c.cfg.Primary
		return c.cfg.Policy == Skip || c.cfg.Policy == LastKnown && has
	}
}

// never is the usable of an attempt that only the backend can answer. enough is that of one for which any answer will do, once
// its budget is used up.
func never(bool) bool  { return false }
func enough(bool) bool { return true }

// errCameBack is the error of a list during which the backend went and came back.
var errCameBack = status.Error(codes.Unavailable, "criproxy: the backend was gone and came back meanwhile")

// ask asks the backend, and caches what it answers. Earlier requests for the same call of a client have spent a part
// of the budget.
func (c *Link) ask(ctx context.Context, l *list, call *codec.Call, usable func(bool) bool, spent time.Duration) error {
	epoch, err := c.alive()
	if err != nil {
		return err
	}
	all := l.Unfiltered(call.Request.Bytes())
	c.backend.mu.Lock()
	seq, at := c.backend.inv.Begin(), time.Now()
	c.backend.mu.Unlock()

	err = c.try(ctx, &attempt{method: call.Method, lag: &l.lag, list: l, usable: usable, spent: spent}, func(ctx context.Context) error { return c.fetch(ctx, l, call) })
	if err != nil {
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		switch {
		case errors.Is(err, errUseCache), ended(ctx):
		case epoch.Err() != nil:
			if c.backend.state.Condition != Gone {
				err = errCameBack
			}
		case ours(err):
		case l.spares(err): // it is an answer in time
			c.markOnTime(&l.lag)
		case all || !aboutTheRequest(err):
			c.fails(l, seq, err)
			c.backend.noteAnswer()
		}
		return err
	}
	if c.observe(epoch, l, seq, at, call.Request, call.Reply, all) {
		return c.askWhole(ctx, l, call.Method, spent+time.Since(at))
	}
	return nil
}

// askWhole asks for the whole list after an answer to a request with a filter has lacked cached items: they have
// changed, or are gone. Only the whole list shows which, and the cache must have that before the client gets the answer.
func (c *Link) askWhole(ctx context.Context, l *list, method string, spent time.Duration) error {
	c.backend.mu.Lock()
	usable := c.usableList(l)
	c.backend.mu.Unlock()
	whole := &codec.Call{Method: method, Request: &codec.Frame{}}
	err := c.ask(ctx, l, whole, usable, spent)
	switch {
	case err == nil:
		whole.Reply.Free()
	case errors.Is(err, errUseCache):
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		c.invalidateWhole(l)
	case !aboutTheRequest(err):
		return err
	}
	return nil
}

// invalidateWhole makes lists wait for the next whole list, which shows what a client has seen to be gone. mu is held.
func (c *Link) invalidateWhole(l *list) {
	l.Invalidate(time.Now())
	c.updateInBackground(l)
}

// observe caches the answer to request seq, made at a time in an epoch. lacks is that of [inventory.Listing.Merge].
func (c *Link) observe(epoch context.Context, l *list, seq uint64, at time.Time, request, answer *codec.Frame, all bool) (lacks bool) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	switch {
	case c.epoch != epoch: // the answer is older than what the cache has got since
	case all:
		l.Observe(seq, at, answer)
		c.notifyFirst()
		c.noteListed() // from the first answer on, later lists must not lack what a client has seen
		c.wakeWaiting()
	default:
		if lacks = l.Merge(seq, request.Bytes(), answer.Bytes()); lacks && l.lag.late() {
			c.invalidateWhole(l)
			return false
		}
	}
	return lacks
}

// spares reports whether an error in place of the list says nothing about the backend: it has no such list, or Run never asks
// for it and clients can do without it, or the cache does not have all of it. Such a list may fail once, because a container was
// removed meanwhile, or for ever, as ListPodSandboxStats of containerd 1.6 does while there is a sandbox that has ended.
// Backend.mu is held.
func (l *list) spares(err error) bool {
	return l.lacking(err) || !l.Spec.Gate && l.Spec.Every == 0 && (l.Spec.Optional || !l.Complete)
}

// lacking reports whether err says that the backend has no such list, and may do without it. Backend.mu is held.
func (l *list) lacking(err error) bool {
	return status.Code(err) == codes.Unimplemented && !l.Spec.Gate && !l.Complete
}

// updateInBackground asks for the whole list in the background, unless such a request is under way
// already. If something has changed since that was made, updateInBackground makes one more. mu is held.
func (c *Link) updateInBackground(l *list) {
	latest := c.backend.inv.Asked() + 1
	if c.askInBackground(&l.lag, l.Method().Name, l.ChangedSince(l.latest), func(ctx context.Context) { c.update(ctx, l, never) }) {
		l.latest = latest
	}
}

const (
	mostUnderWay = 3 // bounds how many requests for one answer may be under way in the background
	waitTimes    = 3 // bounds how long each of them waits, in times of Silence
)

// askInBackground runs f, which makes a request of the method of g, in a goroutine. It reports
// false if enough requests are under way: one; or two, if more is set; or up to mostUnderWay, while
// the latest has taken so long that its answer may never come. mu is held.
func (c *Link) askInBackground(g *lag, method string, more bool, f func(context.Context)) bool {
	room := g.underWay == 0 || g.underWay == 1 && more || g.underWay < mostUnderWay && time.Since(g.asked) >= c.cfg.Silence
	if !room || c.replaced() || c.backend.life.Err() != nil {
		return false
	}
	g.underWay++
	g.asked = time.Now() // also if it fails: a backend need not have the method
	began := g.asked
	c.backend.background.Go(func() {
		ctx, cancel := context.WithTimeout(c.backend.life, waitTimes*c.cfg.Silence)
		defer cancel()
		_ = c.cfg.Panicked.Run(method, func() { f(ctx) }) // the hook reports a panic; the request is repeated
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		g.underWay--
		g.took = time.Since(began)
		c.backend.Check() // its statuses may be wanted now
	})
	return true
}

// update asks the backend for the whole list and caches the answer.
func (c *Link) update(ctx context.Context, l *list, usable func(long bool) bool) {
	call := &codec.Call{Method: l.Method().Name, Request: &codec.Frame{}}
	if err := c.ask(ctx, l, call, usable, 0); err == nil {
		call.Reply.Free()
	}
}

// updateWithin is update for callers that wait until ctx ends, or for the budget. It does not wait for a backend that is late
// if the cache is no older than the latest change.
func (c *Link) updateWithin(ctx context.Context, l *list, usable func(long bool) bool) {
	switch now, soon, shows := c.answersFor(l); {
	case soon:
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
		defer cancel()
		_ = c.try(ctx, &attempt{lag: &l.lag, list: l, usable: shows}, nil) // an error means that it takes too long
	case !now:
		c.update(ctx, l, usable)
	}
}

// fetch asks for a list by its unary or streaming method, or by the other one if the backend lacks it. The reply has its
// items in one well-formed message.
func (c *Link) fetch(ctx context.Context, l *list, call *codec.Call) error {
	streamed := func() error { return collect(ctx, c.next, l.ListPlan, call, c.cfg.Streamed) }
	whole := func() error {
		if err := call.OnAs(ctx, c.next, l.Unary.Name, call.Request); err != nil {
			return err
		}
		return check(call, l.Shape)
	}
	if l.Stream != nil && call.Method == l.Stream.Name {
		return or(l.ListPlan, streamed(), whole)
	}
	return or(l.ListPlan, whole(), streamed)
}

// fromCache answers a list from the cache.
func (c *Link) fromCache(ctx context.Context, l *list, call *codec.Call) error {
	if c.cfg.Policy == Skip {
		call.Reply = &codec.Frame{}
		return nil
	}
	view := c.backend.view()
	if !view.Complete(l.ListPlan) && !l.Spec.Optional { // its latest answer is malformed
		return c.unknown(nil)
	}
	answer, err := view.Answer(l.ListPlan, call.Request.Bytes())
	if err != nil {
		return err
	}
	if c.cfg.Reserve != nil {
		if err := c.cfg.Reserve(ctx, len(answer)); err != nil {
			return err
		}
	}
	c.mark(ctx, l.Method().Name, call)
	call.Reply = codec.NewFrame(answer)
	return nil
}

// listInstead answers a list for a backend that is not gone and that answered err. The lists of
// the other backends do not fail because of that, as long as the cache has this backend's items.
func (c *Link) listInstead(ctx context.Context, l *list, call *codec.Call, err error) error {
	c.backend.mu.Lock()
	complete, lacking := l.Complete, l.lacking(err)
	c.backend.mu.Unlock()
	switch {
	case c.cfg.Policy == Skip, c.cfg.Policy == LastKnown && complete:
		return c.fromCache(ctx, l, call)
	case lacking, c.cfg.Primary, errors.Is(err, errCameBack):
		return err // the client gets the backend's own error
	case c.cfg.Policy == LastKnown && l.Spec.Optional:
		return c.fromCache(ctx, l, call)
	}
	if c.cfg.Policy == Fail {
		return status.Error(codes.Unavailable, status.Convert(err).Message())
	}
	return c.unknown(failedError(l.Method().Name, err))
}

// listOfGone answers a list for a backend that is gone, because of err: from the cache, or empty if there is evidence that the
// backend has nothing. Otherwise it waits for a backend that may just be starting, and in the end the list fails.
func (c *Link) listOfGone(ctx context.Context, l *list, call *codec.Call, err error) error {
	if c.cfg.Policy == Fail {
		return status.Error(codes.Unavailable, status.Convert(err).Message())
	}
	c.backend.mu.Lock()
	enough := c.cfg.Policy == Skip || l.Complete || l.Spec.Optional
	c.backend.mu.Unlock()
	switch {
	case enough:
		return c.fromCache(ctx, l, call)
	case c.hasNothing(ctx):
		call.Reply = &codec.Frame{}
		return nil
	}
	if c.comesBack(ctx) {
		call.Method = l.Method().Name
		return c.list(ctx, l, call)
	}
	if ended(ctx) {
		return status.FromContextError(cmp.Or(context.Cause(ctx), context.DeadlineExceeded)).Err()
	}
	return c.unknown(nil)
}

// hasNothing reports whether there is evidence that the backend has no items: no process listens
// at its address, and the cache has nothing of it. The primary always counts as having items.
func (c *Link) hasNothing(ctx context.Context) bool {
	c.backend.mu.Lock()
	may := c.backend.state.Condition == Gone && c.backend.unseen() && c.backend.unsure == nil && !c.cfg.Primary && !c.cfg.Required
	c.backend.mu.Unlock()
	return may && c.cfg.Absent != nil && c.cfg.Absent(ctx)
}

// comesBack waits for a backend that may just be starting, and reports whether it came back.
func (c *Link) comesBack(ctx context.Context) bool {
	c.backend.mu.Lock()
	wait := c.cfg.Silence
	if c.backend.hopeless || c.cfg.Primary {
		wait = 0 // a client has waited for it already, or would get an error at once without us
	}
	back := c.backend.back
	c.backend.mu.Unlock()
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	select {
	case <-back:
		return true
	case <-ctx.Done():
	case <-timeout.C:
	}
	return false
}

// unknown is the error of a list of which the cache lacks items. why is nil if the backend's condition says it.
func (c *Link) unknown(why error) error {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	why = cmp.Or(why, c.backend.state.Err)
	what := "it has not listed them since this node was booted"
	switch {
	case !c.backend.listedSinceBoot && c.cfg.Required:
		return status.Errorf(codes.Unavailable, "criproxy: backend %s is required, has not been seen since this node was booted, and did not come within %s: %v",
			c.cfg.Name, c.cfg.Silence, why)
	case c.backend.unsure != nil:
		what = c.backend.unsure.Error()
	case c.backend.listedSinceBoot:
		what = fmt.Sprintf("its first answer has not come yet, or it has more items than fit in the %d bytes of memory for it", c.cfg.MaxBytes)
	}
	return status.Errorf(codes.Unavailable,
		"criproxy: backend %s %v; it may have items that the cache lacks (%s), and clients take what a list lacks for gone: mend the backend, or take it out of the configuration",
		c.cfg.Name, why, what)
}
