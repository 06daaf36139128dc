package backend

import (
	"bytes"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// cachedMethod is a Reply of the Spec, whose latest answer the Inventory has.
type cachedMethod struct {
	*inventory.ReplyPlan
	lag lag // guarded by Backend.mu
}

// callCached answers a call whose reply is kept, from the backend if that answers within its budget, otherwise from the cache.
func (c *Link) callCached(ctx context.Context, k *cachedMethod, call *codec.Call) error {
	live := c.cfg.Primary && k.Spec.Live
	// Calls wait for a late primary if the cache has no reply. Other backends must not delay calls.
	usable := func(bool) bool {
		_, known := c.backend.inv.Reply(k.Spec.Method)
		return !live && (c.cfg.Policy == LastKnown && known || !c.cfg.Primary)
	}
	c.backend.mu.Lock()
	late := c.backend.state.Condition != Gone && k.lag.late() && usable(false)
	if late {
		c.refreshReplyInBackground(k)
	}
	c.backend.mu.Unlock()
	err := errUseCache
	if !late {
		if err = c.askReply(ctx, k, call, usable); err == nil {
			return nil
		}
	}
	useCache := errors.Is(err, errUseCache)
	if live || !useCache && (c.cfg.Policy != LastKnown || ended(ctx) || ours(err)) {
		return err
	}
	if c.cfg.Policy == LastKnown && c.hasNothing(ctx) {
		call.Reply = &codec.Frame{}
		return nil
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	reply, known := c.backend.inv.Reply(k.Spec.Method)
	switch {
	case c.backend.state.Condition == Up && !useCache:
		return err
	case known && c.cfg.Policy == LastKnown:
		c.mark(ctx, call.Method, call)
		call.Reply = codec.NewFrame(bytes.Clone(reply))
		return nil
	case useCache:
		return status.Errorf(codes.Unavailable, "criproxy: backend %s: %v, and criproxy has no earlier answer in its cache", c.cfg.Name, k.lag.why)
	}
	return err
}

// askReply asks the backend. It caches the answer if the request is empty.
func (c *Link) askReply(ctx context.Context, k *cachedMethod, call *codec.Call, usable func(bool) bool) error {
	at := time.Now()
	err := c.try(ctx, &attempt{method: call.Method, lag: &k.lag, usable: usable, anyAnswer: true}, func(ctx context.Context) error {
		if err := c.next.Call(ctx, call); err != nil {
			return err
		}
		return check(call, k.Shape)
	})
	if err == nil && call.Request.Len() == 0 {
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		c.backend.inv.KeepReply(k.ReplyPlan, call.Reply.Bytes())
		k.lag.asked = at
	}
	return err
}

// refreshReplyInBackground asks for a reply in the background, unless such a request is under way. mu is held.
func (c *Link) refreshReplyInBackground(k *cachedMethod) {
	c.askInBackground(&k.lag, k.Method.Name, false, func(ctx context.Context) {
		call := &codec.Call{Method: k.Method.Name, Request: &codec.Frame{}}
		if err := c.askReply(ctx, k, call, never); err == nil {
			call.Reply.Free()
		}
	})
}

// Reply returns the latest reply to an empty request of a method whose replies are kept. The bytes must not be changed.
func (b *Backend) Reply(method string) ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inv.Reply(method)
}
