package backend

import (
	"context"
	"sync"
	"time"

	"github.com/criproxy/criproxy/codec"
)

const (
	statusRequests = 4                // status calls of ours that may be under way at once
	statusTime     = 30 * time.Second // bounds each of them: one that hangs must not hold up the others for ever
)

// refreshStatuses asks, without waiting, for statuses that are due, unless that is under way. mu is held.
func (c *Link) refreshStatuses() {
	if c.refreshingStatuses || c.backend.life.Err() != nil {
		return
	}
	var due []func()
	for _, l := range c.lists {
		for _, id := range c.dueStatuses(l) {
			due = append(due, func() {
				_ = c.cfg.Panicked.Run(l.Status.Method.Name, func() { c.askStatus(l, id) }) // the hook reports a panic; the request is repeated
			})
		}
	}
	if len(due) == 0 {
		return
	}
	c.refreshingStatuses = true
	epoch := c.epoch
	c.backend.background.Go(func() {
		var all sync.WaitGroup
		room := make(chan struct{}, statusRequests)
		for _, ask := range due {
			room <- struct{}{}
			all.Go(func() {
				defer func() { <-room }()
				if epoch.Err() != nil || c.backend.life.Err() != nil {
					return
				}
				began := time.Now()
				ask()
				// A pause of the same length, at most breath, leaves the backend to clients: a new
				// process asks for the status of every container, while clients wait.
				sleep(c.backend.life, min(time.Since(began), breath), nil)
			})
		}
		all.Wait()
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		c.refreshingStatuses = false
	})
}

// dueStatuses returns the ids of the items whose status Run should ask for. mu is held.
func (c *Link) dueStatuses(l *list) []string {
	if l.Status == nil {
		return nil
	}
	lag := &l.statusLag
	again := lag.late() && older(lag.asked, c.cfg.Interval)
	ids := l.DueStatuses(c.backend.inv.Bytes() < c.cfg.MaxBytes, again) // any item will do: the question is whether the method is still late
	if again {
		lag.asked = time.Now()
		if len(ids) == 0 {
			c.setLate(lag, nil) // there are no items whose status could be late
			c.reconsider()
		}
	}
	return ids
}

// askStatus asks the backend for the status of an item, and caches it. An item without a status is cached as one that has none.
func (c *Link) askStatus(l *list, id string) {
	ctx, cancel := context.WithTimeout(c.backend.life, statusTime)
	defer cancel()
	c.backend.mu.Lock()
	asked := c.backend.inv.BeginStatus()
	c.backend.mu.Unlock()
	call := &codec.Call{Method: l.Status.Method.Name, Request: codec.NewFrame(l.Status.ID.Append(nil, []byte(id)))}
	err := c.try(ctx, &attempt{method: call.Method, lag: &l.statusLag, usable: never, anyAnswer: true}, func(ctx context.Context) error {
		return c.next.Call(ctx, call)
	})
	if err != nil {
		call.Reply = &codec.Frame{}
	}
	if l.AsksStatus() && (err == nil || answersNothing(err)) { // an item that has none is asked for when it changes
		c.keep(l, id, asked, call.Reply.Bytes())
	}
	call.Reply.Free()
}
