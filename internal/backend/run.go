package backend

import (
	"context"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/transport"
)

const (
	// firstWait and lastWait are the shortest and the longest pause between attempts to find a backend back. They are those
	// of k8s.io/cri-client.
	firstWait = 100 * time.Millisecond
	lastWait  = 3 * time.Second

	refusalGrace    = 500 * time.Millisecond // how long a backend stays gone after a change was refused: see lockAfterRefusals
	maxRefusalGrace = 2 * time.Second        // bounds that if refusals keep coming
	breath          = 50 * time.Millisecond  // the least time between two rounds, however much changes

	// maxSilence bounds how long a backend that has shown that it answers late may be silent: as long as the most patient
	// client waits for an answer.
	maxSilence = 2 * time.Minute
)

// Run looks after the backend until ctx ends: it asks for answers that no client has asked for,
// finds out when the backend is gone or back, and writes the file. It returns when everything that
// it started has ended, also after the End of the last link. The caller must not use the Backend after Run. Run returns at once
// if it is under way.
func (b *Backend) Run(ctx context.Context) error {
	if b.running.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(b.life, cancel)()
	defer context.AfterFunc(ctx, b.end)() // requests in the background end at once, not with the next round
	rounds := make(chan struct{}, 1)
	// In goroutines of their own: a disk or a log that hangs must not delay the rounds.
	b.background.Go(func() {
		for range rounds {
			b.do("writing the cache of", b.save) // after a panic the next round tries again
		}
	})
	b.background.Go(func() {
		for {
			select {
			case <-b.notify:
				b.do("notifying of", b.notifyAll)
			case <-ctx.Done():
				return
			}
		}
	})
	var before *Link
	wait := firstWait
	for {
		c := b.current.Load()
		next := c.cfg.Interval
		b.do("looking after", func() { // after a panic the next round follows
			if c != before || b.State().Condition != Gone {
				before, wait = c, firstWait
			}
			if c.cfg.Pass {
				c.watch()
			} else if b.State().Condition != Gone {
				c.updateDue()
			} else if !c.comeBack(ctx) {
				next, wait = wait, min(wait*2, lastWait)
			}
		})
		wake(rounds) // if the goroutine has not finished the last round, it will write the results of this one as well
		if !sleep(ctx, breath, nil) || !sleep(ctx, next-breath, b.check) {
			b.mu.Lock()
			b.end() // from here on nothing new goes on in the background
			b.mu.Unlock()
			close(rounds)
			b.background.Wait()
			return b.Save()
		}
	}
}

// do runs a task of the backend. The hook reports a panic.
func (b *Backend) do(what string, f func()) {
	c := b.current.Load()
	_ = c.cfg.Panicked.Run(what+" backend "+c.cfg.Name, f)
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

// save writes the file, for the end of a round. It passes the first of several failures in a row to Watch; the next round
// tries again.
func (b *Backend) save() {
	err := b.Save()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && !b.failing {
		s := b.stateNow()
		s.Err = err
		b.queueNotice(s)
	}
	b.failing = err != nil
}

// updateDue asks, without waiting, for answers that are old or that a call has changed. It marks the
// backend gone if that has been silent for too long.
func (c *Link) updateDue() {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if c.replaced() {
		return // another link asks
	}
	c.askDue()
	c.checkSilence()
	c.backend.inv.Bound(c.plan, c.cfg.MaxBytes)
}

// checkSilence ends the calls on a link, and marks the backend gone, if that has been silent for too long. Waiting for it would
// be useless. mu is held.
func (c *Link) checkSilence() {
	silent := c.pulse.beat(2 * c.cfg.Interval)
	if silent > 0 || slices.ContainsFunc(c.lags, (*lag).late) {
		c.probe()
	}
	if silent >= c.silenceLimit {
		c.goneNow(&transport.SilentError{Lasted: c.silenceLimit}, true)
	}
}

// askDue asks for the answers that are old or that a call has changed. mu is held.
func (c *Link) askDue() {
	for _, l := range c.lists {
		again := l.lag.firstError > 0 && l.latest <= l.lag.firstError
		due := again || l.Spec.Every > 0 && !l.lag.failing && (!l.Complete || l.Stale() || older(l.At, l.Spec.Every))
		// A late method that no client calls is tried again, with pauses as long as its answers
		// take, to find out whether it is still late.
		if due || l.lag.late() && older(l.lag.asked, c.pause(&l.lag)) {
			c.updateInBackground(l)
		}
	}
	c.refreshStatuses()
	for _, k := range c.cached {
		if k.Spec.Every > 0 && older(k.lag.asked, k.Spec.Every) || k.lag.late() && older(k.lag.asked, c.pause(&k.lag)) {
			c.refreshReplyInBackground(k)
		}
	}
}

// pause is the time between two requests of a late method that no client calls: twice as long as its latest answer took.
func (c *Link) pause(g *lag) time.Duration {
	return max(c.cfg.Interval, min(2*g.took, c.cfg.Silence))
}

// probe calls Alive, without waiting, unless such a call is under way. mu is held.
func (c *Link) probe() {
	if c.cfg.Alive == "" || c.probing || c.backend.life.Err() != nil {
		return
	}
	c.probing = true
	epoch := c.epoch
	c.backend.background.Go(func() {
		ask := c.call
		if c.cfg.Pass { // it may be gone, and any answer shows that it is back, also an error
			ask = c.pulse.count
		}
		ctx, cancel := context.WithTimeout(c.backend.life, maxSilence)
		defer cancel()
		err := ask(ctx, c.callAlive)
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		c.probing = false
		if c.cfg.Pass {
			c.backend.Check()
		}
		// If Alive fails and the latest answer to each gate was an error, the backend answers every call with one.
		allFailing := len(c.gates) > 0 && !slices.ContainsFunc(c.gates, func(l *list) bool { return !l.lag.failing })
		if err != nil && ctx.Err() == nil && c.epoch == epoch && c.backend.state.Condition != Gone && allFailing {
			c.goneNow(failedError(c.cfg.Alive, err), mustBeMended(err))
		}
	})
}

// older reports whether a time is longer ago than d. One in the future counts as long ago: the clock was set back.
func older(at time.Time, d time.Duration) bool {
	since := time.Since(at)
	return since < 0 || since >= d
}
