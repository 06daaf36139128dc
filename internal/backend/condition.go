package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Condition says whether a backend answers. With the policy LastKnown it means for a call:
//
//	          a list, a status or a kept reply                       any other call
//	up, slow  goes to the backend; past its budget the cache         goes to the backend
//	          answers, if it has what the client may know of
//	slow      of a method that is late: the cache answers at once,   goes to the backend
//	          and the backend is asked in the background
//	gone      the cache answers, or the call fails                   fails at once: Unavailable
//
// With Skip a list without an answer is empty, and with Fail it fails. These events change the condition, and no others:
//
//	from      event                                                        to
//	up        a list, status or kept reply takes longer than Budget        slow
//	up        a list is an error twice in a row                            slow
//	slow      each method that was late has answered in time three times,  up
//	          and Silence has passed since
//	up, slow  the connection is refused or ends                            gone
//	up, slow  the backend has answered nothing at all for Silence, or      gone
//	          longer, if it has shown that it answers that late
//	up, slow  all gates and [Config.Alive] answer with errors              gone
//	gone      all lists that are gates have answered; without gates,       up
//	          [Config.Alive] has
//	gone      Alive has answered, and a gate has failed, or has not        slow
//	          answered within Budget
//
// The State belongs to the Backend, and Backend.mu guards it; Watch learns of each change, in order, from Run. Only the link that
// new calls use changes it. A process begins with what the one before it last said.
type Condition int

// The conditions.
const (
	Up   Condition = iota
	Slow           // the cache answers the calls that would come late; all others pass as usual
	Gone           // no call goes to it
)

// String returns the word for the condition in the log, in status and in JSON.
func (c Condition) String() string { return [...]string{"up", "slow", "gone"}[c] }

// State is the condition of a backend, with its time and reason. The Backend changes its own only as a whole, so each State that
// Watch gets, or that [Backend.State] returns, was true at one moment.
type State struct {
	Condition Condition
	Since     time.Time
	Seen      bool  // it has answered a list since the machine was booted
	Err       error // why it is slow or gone; for a backend that is up, another problem, such as with its file
	First     bool  // of the states for which Watch is called
}

// calm is how many answers in time make a method that was late punctual again, if Silence has passed since it was late.
const calm = 3

// lag says whether the answers of one method come late. It belongs to its link, and Backend.mu guards it. States of a method:
//
//	state      why  firstError  failing  begins when                                  ends when
//	on time    nil  0           false    -                                            -
//	one error  nil  > 0         false    a list is an error                           the next list succeeds, or fails as well
//	late       set  0           false    an answer takes longer than its budget, or   calm answers in a row have come in time, and
//	                                     one of a failing method comes in time        Silence has passed since the last late one
//	failing    set  0           true     two lists in a row are errors, or the        the next answer in time
//	                                     backend does not have the list any more
type lag struct {
	method  string
	why     error // why it is late; nil if it is not
	before  bool  // why is the reason of an earlier link or process
	failing bool  // its latest answers were errors

	// firstError is set if the latest answer was an error and the one before it was none: to the number of the latest request of
	// then. The answer to a later one says whether the method fails.
	firstError uint64

	inTime   int           // how many answers came in time since one was late
	since    time.Time     // when an answer was last late
	asked    time.Time     // when the latest request in the background was made
	took     time.Duration // how long the latest such request that has ended took
	underWay int           // how many such requests are under way
}

// late reports whether the latest answers came late, or not at all.
func (g *lag) late() bool { return g.why != nil }

// markLate notes that a method has not answered within its budget. mu is held.
func (c *Link) markLate(g *lag, why error) {
	if g.why == nil || g.before {
		c.setLate(g, why)
	}
	g.inTime, g.since = 0, time.Now()
	c.reconsider()
	c.notifySlow()
	c.backend.Check()
}

// fails notes that request seq for a list has ended with an error. One error is the trouble of its call: containerd answers a
// list with NotFound while a container is removed. Run asks again at once. The list fails if that request, or another one
// that was made after the error, does so too, or if the backend does not have it any more. mu is held.
func (c *Link) fails(l *list, seq uint64, err error) {
	g := &l.lag
	if g.late() || status.Code(err) == codes.Unimplemented || g.firstError > 0 && seq > g.firstError {
		c.markFailing(g, failedError(l.Method().Name, err))
		return
	}
	if g.firstError == 0 {
		g.firstError = c.backend.inv.Asked()
		c.backend.Check()
	}
}

// markFailing notes that a method has answered with an error, and ends the calls that wait for its answer. mu is held.
func (c *Link) markFailing(g *lag, why error) {
	g.failing, g.firstError = true, 0
	c.markLate(g, why)
	for _, a := range c.backend.attempts {
		if a.overdue && a.lag == g {
			a.long = true
			c.useCache(a)
		}
	}
}

// setLate records why a method is late, or with nil that it is in time. The next link and process inherit the reason. mu is
// held.
func (c *Link) setLate(g *lag, why error) {
	g.why, g.before = why, false
	if c.replaced() {
		return
	}
	if delete(c.backend.late, g.method); why != nil {
		c.backend.late[g.method] = why.Error()
	}
	c.backend.news = true
}

// markOnTime notes an answer within the budget. mu is held.
func (c *Link) markOnTime(g *lag) {
	g.failing, g.firstError = false, 0
	if g.why == nil {
		return
	}
	if g.inTime++; g.inTime >= calm && time.Since(g.since) >= c.cfg.Silence {
		c.setLate(g, nil)
		c.reconsider()
	}
}

// whyLate returns why the first of the methods that are late is so, nil if none is. mu is held.
func (c *Link) whyLate() error {
	for _, g := range c.lags {
		if g.why != nil {
			return g.why
		}
	}
	return nil
}

// reconsider makes the condition of a backend that is not gone follow its lags. mu is held.
func (c *Link) reconsider() {
	if c.replaced() || c.backend.state.Condition == Gone {
		return
	}
	why := c.whyLate()
	switch {
	case why == nil && c.backend.state.Condition == Slow:
		c.become(Up, nil)
	case why != nil && c.backend.state.Condition == Up:
		c.become(Slow, why)
	}
}

// become changes the condition. Run calls Watch later: a Watch that blocks, as a log can, must not stop a call. mu is held.
func (c *Link) become(condition Condition, why error) {
	c.backend.state = State{Condition: condition, Since: time.Now(), Err: why}
	c.backend.notifyState()
}

// notifyFirst notifies Watch of the condition of a backend that has answered a list, if it was not notified yet. mu is held.
func (c *Link) notifyFirst() {
	if !c.replaced() && !c.backend.notified && c.backend.state.Condition != Gone {
		c.become(c.backend.state.Condition, c.backend.state.Err)
	}
}

// notifySlow notifies Watch of a backend that is slow, as it was for an earlier process, once a method has been late again.
// mu is held.
func (c *Link) notifySlow() {
	again := func(g *lag) bool { return g.late() && !g.before }
	if !c.replaced() && !c.backend.notified && c.backend.state.Condition == Slow && slices.ContainsFunc(c.lags, again) {
		c.become(Slow, c.whyLate())
	}
}

// notifyState notifies Watch of the state as it is now. b.mu is held.
func (b *Backend) notifyState() {
	s := b.stateNow()
	s.First, b.notified = !b.notified, true
	b.queueNotice(s)
}

// queueNotice queues a state for Watch, which Run calls. b.mu is held.
func (b *Backend) queueNotice(s State) {
	b.undelivered = append(b.undelivered, s)
	wake(b.notify)
}

// notifyAll calls Watch for each state in the queue, unless the backend was taken away.
func (b *Backend) notifyAll() {
	b.mu.Lock()
	states := b.undelivered
	b.undelivered = nil
	b.mu.Unlock()
	for _, s := range states {
		if c := b.current.Load(); c.cfg.Watch != nil && !c.replaced() {
			c.cfg.Watch(s)
		}
	}
}

// goneNow ends all calls that are under way on the link, and marks the backend gone, unless it has another link. hopeless says that
// waiting for the backend is useless. These are all reasons; comeBack, or watch with [Config.Pass], finds out that one has ended,
// and stillGone that there is another one. mu is held.
//
//	reason                                   hopeless           who finds out
//	the connection is refused or ends        no                 judge, by a call; with Pass also Reached
//	it has answered nothing for Silence      yes                checkSilence
//	all gates and Alive answer with errors   if mustBeMended    probe
func (c *Link) goneNow(why error, hopeless bool) {
	c.endEpoch(why)
	for _, a := range c.backend.attempts {
		if a.epoch == c.epoch {
			a.cancel(why)
		}
	}
	if c.backend.current.Load() != c || c.backend.state.Condition == Gone {
		return
	}
	c.backend.hopeless, c.backend.back, c.answers = hopeless, make(chan struct{}), c.pulse.answers.Load()
	c.backend.news = true
	c.become(Gone, why)
	c.backend.Check()
}

// alive returns the context of the current epoch, which ends when the backend goes, or an error if it is gone.
func (c *Link) alive() (context.Context, error) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if c.backend.state.Condition == Gone {
		return nil, c.unavailable()
	}
	return c.epoch, nil
}

// unavailable is the error of a call to a backend that is gone. mu is held.
func (c *Link) unavailable() error {
	return status.Errorf(codes.Unavailable, ofBackend+"%s "+goneSince+"%s: %v",
		c.cfg.Name, c.backend.state.Since.Format(time.TimeOnly), c.backend.state.Err)
}

// judge returns the client's error for the error of a call that began in epoch, which may show that the backend is gone.
func (c *Link) judge(epoch context.Context, err error) error {
	if err == nil {
		return nil
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	switch {
	case epoch.Err() != nil && c.backend.state.Condition == Gone:
		return c.unavailable()
	case epoch.Err() != nil: // it ended because the backend went
		return status.Errorf(codes.Unavailable, ofBackend+"%s was gone meanwhile: %v", c.cfg.Name, context.Cause(epoch))
	case unreachable(err):
		c.goneNow(c.reason(err), false)
	}
	return err
}

// unreachable reports whether the backend could not be reached: such errors have a method Unreachable, unlike its own ones.
func unreachable(err error) bool {
	var u interface{ Unreachable() bool }
	return status.Code(err) == codes.Unavailable && errors.As(err, &u) && u.Unreachable()
}

// reason is err without the words with which every message about the backend begins.
func (c *Link) reason(err error) error {
	return errors.New(strings.TrimPrefix(status.Convert(err).Message(), ofBackend+c.cfg.Name+" "))
}

// lateError is why a method counts as late.
func lateError(method string, budget time.Duration) error {
	return fmt.Errorf("has not answered %s within %s", method, budget)
}

// failedError is why a method that answers with an error counts as late.
func failedError(method string, err error) error {
	s := status.Convert(err)
	return fmt.Errorf("answers %s with %s: %s", method, s.Code(), s.Message())
}

// mustBeMended reports whether an error says that the call fails until somebody has mended something, as another criproxy says
// of a call that has come back to it: see [codes.FailedPrecondition]. A runtime that is starting answers with other errors.
func mustBeMended(err error) bool { return status.Code(err) == codes.FailedPrecondition }

// ours reports whether a call failed because of a limit of this process: such errors have a method Ours. Such an error says
// nothing about the backend, and there is no room for an answer from the cache either.
func ours(err error) bool {
	var o interface{ Ours() bool }
	return errors.As(err, &o) && o.Ours()
}

// aboutTheRequest reports whether an error is about the request, and not about how the backend is doing.
func aboutTheRequest(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.OutOfRange:
		return true
	}
	return false
}

// ended reports whether a client has gone or its deadline has passed. It looks at the clock,
// because a backend may notice the deadline before our own timer does.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}
