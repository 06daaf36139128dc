package lastknown

import (
	"context"
	"fmt"
	"slices"

	"github.com/criproxy/criproxy/rewrite"
)

// Holds returns how many items of a kind have name as their id or as its
// beginning. An id that is exactly that counts alone.
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

// MayHold reports whether the backend may have items of a kind that are not remembered:
// it is gone and was never asked, or too slow, or gone too early, to say what a call has changed.
func (c *Conn) MayHold(kind string) bool {
	c.mu.Lock()
	at, may := c.state.Condition, false
	for _, l := range c.lists {
		may = may || l.spec.Kind == kind && (!l.complete || at != Up && l.dirty() || at == Slow && l.lag.failing)
	}
	c.mu.Unlock()
	return may && !c.hasNothing(c.life)
}

// Refresh asks for the lists of a kind, so that [Conn.Holds] is as fresh as can be. It
// returns when they are known, or have taken their budget.
func (c *Conn) Refresh(ctx context.Context, kind string) {
	for _, l := range c.lists {
		if l.spec.Kind == kind {
			c.renewWithin(ctx, l)
		}
	}
}

// renewWithin is renew for a client that waits. A backend that is late is not waited for
// where memory is no older than the latest change.
func (c *Conn) renewWithin(ctx context.Context, l *list) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
	defer cancel()
	switch now, soon, usable := c.answersFor(l); {
	case soon:
		_ = c.await(ctx, &attempt{lag: &l.lag, list: l, usable: usable}) // it was renewed, or takes too long
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

// Finder returns a finder of the items of a list that have a value at a path. With
// an empty path it is the item's id or another of its names.
func (c *Conn) Finder(listed, path string) (*Finder, error) {
	f := &Finder{conn: c}
	for _, l := range c.lists {
		if l.spec.List == listed {
			f.list = l
		}
	}
	if f.list == nil {
		return nil, fmt.Errorf("nothing is known of a list %q", listed)
	}
	if path == "" {
		return f, nil
	}
	p, err := textPath(f.list.item, path)
	if err != nil {
		return nil, err
	}
	f.path = p
	return f, nil
}

// Has reports whether an item is known that has the value. None has an empty one.
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

// Any reports whether an item is known of which is says so. It must return soon.
func (f *Finder) Any(is func(item []byte) bool) bool {
	f.conn.mu.Lock()
	defer f.conn.mu.Unlock()
	f.list.settle()
	return slices.ContainsFunc(f.list.items.bodies, is)
}

// Renew asks the backend for the list if that may have changed since it was last
// told, so that what was made a moment ago is found. Where the backend cannot be
// asked, the remembered items stay.
func (f *Finder) Renew(ctx context.Context) {
	f.conn.mu.Lock()
	due := f.conn.state.Condition != Gone && f.list.dirty()
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
