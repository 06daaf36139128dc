package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/criproxy/criproxy/rewrite"
)

// Holds returns how many items of a kind have an id that begins with name. If one id is exactly
// name, Holds returns 1.
func (c *Conn) Holds(kind string, name []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, l := range c.lists {
		if l.spec.Kind == kind {
			n = max(n, l.holds(name))
		}
	}
	return n
}

// Has reports whether the backend has an item of a kind with exactly this id.
func (c *Conn) Has(kind string, id []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.lists, func(l *list) bool { return l.spec.Kind == kind && l.has(string(id)) })
}

// Held reports whether the backend had an item of a kind with the id name, and has it no more.
func (c *Conn) Held(kind string, name []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.lists, func(l *list) bool {
		return l.spec.Kind == kind && l.holds(name) == 0 && l.former.has(string(name))
	})
}

// MayHold reports whether the backend may have items of a kind that memory lacks: because it has
// never listed them, or because it was too slow, or gone, to show what a call has changed.
func (c *Conn) MayHold(kind string) bool {
	c.mu.Lock()
	at, may := c.state.Condition, false
	for _, l := range c.lists {
		may = may || l.spec.Kind == kind && (!l.complete || at != Up && l.stale() || at == Slow && l.lag.failing)
	}
	c.mu.Unlock()
	return may && !c.hasNothing(c.life)
}

// renewWithin is renew for a waiting client: it ends after the budget. It does not wait for a
// backend that is late if memory is no older than the latest change.
func (c *Conn) renewWithin(ctx context.Context, l *list) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
	defer cancel()
	switch now, soon, usable := c.answersFor(l); {
	case soon:
		_ = c.await(ctx, &attempt{lag: &l.lag, list: l, usable: usable}) // an error means that it takes too long
	case !now:
		c.renew(ctx, l)
	}
}

// A Finder finds items of a list by one of their values. It is safe for
// concurrent use.
type Finder struct {
	conn *Conn
	list *list
	path *rewrite.Path // nil for the id and the other names
}

// Finder returns a finder of the items of a list that have a value at a path. An empty path means
// the item's id and its other names.
func (c *Conn) Finder(listed, path string) (*Finder, error) {
	f := &Finder{conn: c}
	for _, l := range c.lists {
		if l.spec.List == listed {
			f.list = l
		}
	}
	if f.list == nil {
		return nil, fmt.Errorf("the profile's known.lists has no list %q", listed)
	}
	if path == "" {
		return f, nil
	}
	p, err := rewrite.ParseTextPath(f.list.item, path)
	if err != nil {
		return nil, err
	}
	f.path = p
	return f, nil
}

// Has reports whether memory has an item with the value. No item has an empty value.
func (f *Finder) Has(value []byte) bool {
	if len(value) == 0 {
		return false
	}
	f.conn.mu.Lock()
	defer f.conn.mu.Unlock()
	f.list.settle()
	if f.path != nil {
		return f.list.any(f.path, value)
	}
	_, ok := f.list.byName(f.conn.cfg.Equivalents(string(value)))
	return ok
}

// Any reports whether is returns true for an item in memory. is must return at once.
func (f *Finder) Any(is func(item []byte) bool) bool {
	f.conn.mu.Lock()
	defer f.conn.mu.Unlock()
	f.list.settle()
	return slices.ContainsFunc(f.list.items.bodies, is)
}

// Renew asks the backend for the list if the remembered one may be out of date, so that Has finds
// an item that was made a moment ago. If the backend is gone, the remembered items stay.
func (f *Finder) Renew(ctx context.Context) {
	f.conn.mu.Lock()
	due := f.conn.state.Condition != Gone && f.list.stale()
	f.conn.mu.Unlock()
	if due {
		f.conn.renewWithin(ctx, f.list)
	}
}

func (l *list) any(p *rewrite.Path, value []byte) bool {
	for _, item := range l.items.bodies {
		got, ok, err := p.Lookup(item)
		if err == nil && ok && string(got) == string(value) {
			return true
		}
	}
	return false
}
