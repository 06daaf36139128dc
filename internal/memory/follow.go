package memory

import (
	"context"
	"sync"
	"time"

	"github.com/criproxy/criproxy/codec"
)

const (
	// followers is how many status calls of ours may be under way at once.
	followers = 4

	// followTime bounds each of them: a call that hangs must not hold up the others for ever.
	followTime = 30 * time.Second
)

// follow asks, without waiting, for the status of items that are new or have changed,
// unless that is under way. c.mu is held.
func (c *Conn) follow() {
	if c.follows || c.life.Err() != nil {
		return
	}
	type question struct {
		list *list
		id   string
	}
	var questions []question
	for _, l := range c.lists {
		for _, id := range c.dueStatuses(l) {
			questions = append(questions, question{l, id})
		}
	}
	if len(questions) == 0 {
		return
	}
	c.follows = true
	queue := make(chan question)
	var workers sync.WaitGroup
	for range min(followers, len(questions)) {
		workers.Go(func() {
			for q := range queue {
				began := time.Now()
				_ = c.cfg.Panicked.Run(q.list.status.method.Name, func() { c.askStatus(q.list, q.id) }) // the hook reports a panic; the request is repeated
				// A pause of the same length, at most breath, leaves the backend to clients: a new
				// process asks for the status of every container, while clients wait.
				sleep(c.life, min(time.Since(began), breath), nil)
			}
		})
	}
	epoch := c.epoch
	c.background.Go(func() {
		for _, q := range questions {
			if epoch.Err() == nil && c.life.Err() == nil {
				queue <- q
			}
		}
		close(queue)
		workers.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.follows = false
	})
}

// dueStatuses returns the ids of the items whose status Run should ask for. c.mu is held.
func (c *Conn) dueStatuses(l *list) []string {
	if l.status == nil {
		return nil
	}
	l.settleWhole()
	lag := &l.status.lag
	if lag.late() && older(lag.asked, c.cfg.Interval) && len(l.status.wanted) == 0 {
		lag.asked = time.Now()
		if len(l.items.ids) == 0 {
			c.setLate(lag, nil) // there are no items whose status could be late
			c.reconsider()
		}
		for id := range l.items.place { // any item will do: the question is whether the method is still late
			l.status.wanted[id] = true
			break
		}
	}
	var ids []string
	for id := range l.status.wanted {
		ids = append(ids, id)
	}
	if l.asksStatus() && c.mem.bytes() < c.cfg.MaxBytes {
		for id := range l.items.place { // in random order: a status that never comes must not always be first
			if !l.statuses[id].fresh() && !l.status.wanted[id] {
				ids = append(ids, id)
			}
		}
	}
	clear(l.status.wanted)
	return ids
}

func (c *Conn) askStatus(l *list, id string) {
	ctx, cancel := context.WithTimeout(c.life, followTime)
	defer cancel()
	c.mu.Lock()
	l.settleWhole()
	asked := l.begin()
	c.mu.Unlock()
	call := &codec.Call{Method: l.status.method.Name, Request: codec.NewFrame(l.status.id.Append(nil, []byte(id)))}
	err := c.try(ctx, &attempt{method: l.status.method.Name, lag: &l.status.lag, usable: never, anyAnswer: true}, func(ctx context.Context) error {
		return c.next.Call(ctx, call)
	})
	if err != nil {
		call.Reply = &codec.Frame{}
	}
	if l.asksStatus() && (err == nil || answersNothing(err)) { // an item that has none is asked for when it changes
		c.keep(l, id, asked, call.Reply.Bytes())
	}
	call.Reply.Free()
}
