package memory

import (
	"context"

	"github.com/criproxy/criproxy/internal/inventory"
)

// Match returns which items of a kind have a name.
func (c *Conn) Match(kind string, name []byte) inventory.Match {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mem.inv.Match(c.plan, kind, string(name))
}

// Items returns how many items memory has of each kind.
func (c *Conn) Items() map[string]int { return c.view().Counts(c.plan) }

// MayHold reports whether the backend may have items of a kind that memory lacks: because it has
// never listed them, or because it was too slow, or gone, to show what a call has changed.
func (c *Conn) MayHold(kind string) bool {
	c.mu.Lock()
	at, may := c.state.Condition, false
	for _, l := range c.lists {
		may = may || l.Spec.Kind == kind && (!l.Complete || at != Up && l.Stale() || at == Slow && l.lag.failing)
	}
	c.mu.Unlock()
	return may && !c.hasNothing(c.life)
}

// Named reports whether memory has an item with a name: its id, another name, or the beginning of only its id. The item is
// in the list that a method, by its full name, returns.
func (c *Conn) Named(method, name string) bool {
	l := c.roles[method].list
	return l != nil && c.view().Named(l.ListPlan, name)
}

// Any reports whether is returns true for an item in memory of the list that a method returns.
func (c *Conn) Any(method string, is func(item []byte) bool) bool {
	l := c.roles[method].list
	return l != nil && c.view().Any(l.ListPlan, is)
}

// view returns all lists as memory has them now.
func (c *Conn) view() *inventory.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mem.inv.View()
}

// Renew asks the backend for the list that a method returns if the remembered one may be out of date, so that memory has
// an item that was made a moment ago. If the backend is gone, the remembered items stay.
func (c *Conn) Renew(ctx context.Context, method string) {
	l := c.roles[method].list
	c.mu.Lock()
	due := c.state.Condition != Gone && l != nil && l.Stale()
	c.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
		defer cancel()
		c.renewWithin(ctx, l, never)
	}
}
