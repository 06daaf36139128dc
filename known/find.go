package known

import (
	"context"
	"fmt"

	"github.com/criproxy/criproxy/codec"
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

// Refresh asks for the lists of a kind, so that [Conn.Holds] is as fresh as can
// be. It returns when they are known, or cannot be.
func (c *Conn) Refresh(ctx context.Context, kind string) {
	for _, l := range c.lists {
		if l.spec.Kind != kind {
			continue
		}
		if answer, err := c.ask(ctx, l, l.anyMethod(), &codec.Frame{}, nil); err == nil {
			answer.Free()
		}
	}
}

// Finder returns a function that reports whether an item of a list has a value at
// a path. With an empty path it is the item's id or another of its names.
func (c *Conn) Finder(listed, path string) (func(value []byte) bool, error) {
	var l *list
	for _, one := range c.lists {
		if one.spec.List == listed {
			l = one
		}
	}
	if l == nil {
		return nil, fmt.Errorf("nothing is known of a list %q", listed)
	}
	if path == "" {
		return func(value []byte) bool {
			if len(value) == 0 {
				return false
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			l.settle()
			_, ok := l.byName(c.cfg.Equivalents(string(value)))
			return ok
		}, nil
	}
	p, err := textPath(l.item, path)
	if err != nil {
		return nil, err
	}
	return func(value []byte) bool {
		if len(value) == 0 {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		l.settle()
		return l.any(p, value)
	}, nil
}

func (l *list) any(p *rewrite.Path, value []byte) bool {
	for _, item := range l.items {
		got, ok, err := p.Lookup(item)
		if err == nil && ok && string(got) == string(value) {
			return true
		}
	}
	return false
}
