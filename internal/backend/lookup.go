package backend

import (
	"context"
	"time"
)

// lookUpEvery is the least time between two lists that a link makes because calls need items that the cache lacks,
// however many calls do. An id that no backend has costs its client that time at most, and the backend four lists a second.
const lookUpEvery = 250 * time.Millisecond

// A round is one answer to a list, for all calls that need an item and began before the list was asked for. An
// item that existed when the call began is in it, whoever created the item. Backend.mu guards began.
type round struct {
	began time.Time     // zero: it has not begun yet
	ended chan struct{} // closed when the cache has the answer, or after Config.Budget
}

// Refresh asks for the lists of a kind, and returns when they have come, or have used up their budgets.
func (b *Backend) Refresh(ctx context.Context, kind string) {
	c := b.current.Load()
	for _, l := range c.lists {
		if l.Spec.Kind != kind {
			continue
		}
		select {
		case <-c.nextRound(l).ended:
		case <-ctx.Done():
		}
	}
}

// nextRound returns the round of a list that has not begun yet: it begins after the one before it, see lookUpEvery.
func (c *Link) nextRound(l *list) *round {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if l.round == nil || !l.round.began.IsZero() {
		before := l.round
		l.round = &round{ended: make(chan struct{})}
		if c.backend.life.Err() != nil { // Run has ended, and waits for nothing that begins now
			close(l.round.ended)
			return l.round
		}
		mine := l.round
		c.backend.background.Go(func() {
			defer close(mine.ended)
			_ = c.cfg.Panicked.Run(l.Method().Name, func() { c.runRound(l, before, mine) }) // the hook reports a panic; the calls do not find their items
		})
	}
	return l.round
}

// runRound makes the round mine, after the one before it.
func (c *Link) runRound(l *list, before, mine *round) {
	if before != nil {
		<-before.ended
		if !sleep(c.backend.life, time.Until(before.began.Add(lookUpEvery)), nil) {
			return
		}
	}
	c.backend.mu.Lock()
	mine.began = time.Now()
	c.backend.mu.Unlock()
	c.updateWithin(c.backend.life, l, enough)
}
