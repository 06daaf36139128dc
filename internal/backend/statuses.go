package backend

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
)

// statusOf answers a status call, from the backend if that answers within its budget, otherwise from the cache. An answer of the
// backend about the item, such as NotFound, goes to the client, whatever the cache has.
func (c *Link) statusOf(ctx context.Context, l *list, call *codec.Call) error {
	body := call.Request.Bytes()
	named, _, err := l.Status.ID.Lookup(body)
	if err != nil {
		return err
	}
	id := string(named)
	c.backend.mu.Lock()
	asked := c.backend.inv.BeginStatus()
	late := c.backend.state.Condition != Gone && l.statusLag.late() && c.usableStatus(l, id)
	if late { // ask for it in the background
		l.WantStatus(id)
		c.backend.Check()
	}
	c.backend.mu.Unlock()
	err = errUseCache
	if !late {
		a := &attempt{method: call.Method, lag: &l.statusLag, anyAnswer: true, usable: func(bool) bool { return c.usableStatus(l, id) }}
		err = c.try(ctx, a, func(ctx context.Context) error { return c.next.Call(ctx, call) })
	}
	if err == nil {
		c.backend.answered()
		_, _, first := protowire.ConsumeField(body)
		if onlyID := first == len(body) && first <= len(named)+1+5; onlyID && l.AsksStatus() { // it asks for nothing special
			c.keep(l, id, asked, call.Reply.Bytes())
		}
		return nil
	}
	if c.cfg.Policy != LastKnown || ended(ctx) && !errors.Is(err, errUseCache) || ours(err) || aboutTheRequest(err) {
		return err
	}
	if !l.AsksStatus() && c.hasNothing(ctx) {
		call.Reply = &codec.Frame{}
		return nil
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	// The error of a backend that is up is its answer. A slow backend is most likely starting, or
	// in trouble, and the cache knows better.
	if c.backend.state.Condition == Up && !errors.Is(err, errUseCache) {
		return err
	}
	if known, ok := l.StatusOf(id); ok {
		c.mark(ctx, call.Method, call)
		call.Reply = codec.NewFrame(known)
		return nil
	}
	if c.backend.state.Condition == Gone || errors.Is(err, errUseCache) {
		return c.unavailable()
	}
	return err
}

// usableStatus reports whether the cache can answer for a backend that is late with a status. mu is held.
func (c *Link) usableStatus(l *list, id string) bool {
	if c.cfg.Policy != LastKnown || !l.AsksStatus() && l.Stale() {
		return false
	}
	_, ok := l.StatusOf(id)
	return ok
}

// keep caches the status of an item, which request asked has asked for, if there is room.
func (c *Link) keep(l *list, id string, asked uint64, reply []byte) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	l.KeepStatus(id, asked, reply, c.cfg.MaxBytes)
}

// answersNothing reports whether err says that the item has no status.
func answersNothing(err error) bool {
	return aboutTheRequest(err) || status.Code(err) == codes.Unimplemented
}
