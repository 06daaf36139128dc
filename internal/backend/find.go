package backend

import (
	"context"

	"github.com/criproxy/criproxy/internal/inventory"
)

// Match returns which items of a kind have a name.
func (b *Backend) Match(kind string, name []byte) inventory.Match {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inv.Match(b.current.Load().plan, kind, string(name))
}

// Items returns how many items the cache has of each kind.
func (b *Backend) Items() map[string]int { return b.view().Counts(b.current.Load().plan) }

// MayHold reports whether the backend may have items of a kind that the cache lacks: because it has
// never listed them, or because it was too slow, or gone, to show what a call has changed.
func (b *Backend) MayHold(kind string) bool {
	c := b.current.Load()
	b.mu.Lock()
	at, may := b.state.Condition, false
	for _, l := range c.lists {
		may = may || l.Spec.Kind == kind && (!l.Complete || at != Up && l.Stale() || at == Slow && l.lag.failing)
	}
	b.mu.Unlock()
	return may && !c.hasNothing(b.life)
}

// Named reports whether the cache has an item with a name: its id, another name, or the beginning of only its id. The item is
// in the list that a method, by its full name, returns.
func (b *Backend) Named(method, name string) bool {
	l := b.current.Load().roles[method].list
	return l != nil && b.view().Named(l.ListPlan, name)
}

// Any reports whether is returns true for a cached item of the list that a method returns. is runs without the lock.
func (b *Backend) Any(method string, is func(item []byte) bool) bool {
	l := b.current.Load().roles[method].list
	return l != nil && b.view().Any(l.ListPlan, is)
}

// view returns all lists as the cache has them now.
func (b *Backend) view() *inventory.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inv.View()
}

// Renew asks the backend for the list that a method returns if the cached one is stale, so that the cache has
// an item that was made a moment ago. If the backend is gone, the cached items stay.
func (b *Backend) Renew(ctx context.Context, method string) {
	c := b.current.Load()
	l := c.roles[method].list
	b.mu.Lock()
	due := b.state.Condition != Gone && l != nil && l.Stale()
	b.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
		defer cancel()
		c.updateWithin(ctx, l, never)
	}
}
