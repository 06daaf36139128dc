package memory

import (
	"context"
	"fmt"

	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/rewrite"
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

// A Finder finds items of a list by one of their values. It is safe for concurrent use.
type Finder struct {
	conn *Conn
	list *list
	path *rewrite.Path // nil for the id and the other names
}

// Finder returns a finder by the value at a path in the items of a list; empty: by their ids and other names.
func (c *Conn) Finder(listed, path string) (*Finder, error) {
	f := &Finder{conn: c}
	for _, l := range c.lists {
		if l.Spec.List == listed {
			f.list = l
		}
	}
	if f.list == nil {
		return nil, fmt.Errorf("the profile's known.lists has no list %q", listed)
	}
	if path == "" {
		return f, nil
	}
	p, err := f.list.Path(path)
	if err != nil {
		return nil, err
	}
	f.path = p
	return f, nil
}

// Has reports whether memory has an item with the value, which is not empty.
func (f *Finder) Has(value []byte) bool {
	if f.path == nil {
		return f.conn.view().Named(f.list.ListPlan, string(value))
	}
	return f.Any(func(item []byte) bool {
		got, ok, err := f.path.Lookup(item)
		return err == nil && ok && string(got) == string(value)
	})
}

// view returns all lists as memory has them now.
func (c *Conn) view() *inventory.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mem.inv.View()
}

// Any reports whether is returns true for an item in memory.
func (f *Finder) Any(is func(item []byte) bool) bool { return f.conn.view().Any(f.list.ListPlan, is) }

// Renew asks the backend for the list if the remembered one may be out of date, so that Has finds
// an item that was made a moment ago. If the backend is gone, the remembered items stay.
func (f *Finder) Renew(ctx context.Context) {
	f.conn.mu.Lock()
	due := f.conn.state.Condition != Gone && f.list.Stale()
	f.conn.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(ctx, f.conn.cfg.Budget)
		defer cancel()
		f.conn.renewWithin(ctx, f.list, never)
	}
}
