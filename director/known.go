package director

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/rewrite"
)

// A knownChooser finds a backend by the items of a list in the caches of the backends: one of them must hold the same value, or
// the same map, as the request. It is immutable. A backend without a cache has no items.
type knownChooser struct {
	list     string          // the full name of the method that lists the items
	path     *rewrite.Path   // in the request
	item     *rewrite.Path   // in an item; nil: the id and the other names of it
	without  map[string]bool // keys of the map that do not count; nil if path leads to a value
	backends []Backend
	newTo    int // the backend for new objects
	panics   recovery.Hook
}

// compileKnown reads `List.path = path` and `List.map = map without "key", "key"`.
func (t *table) compileKnown(cfg Config, text string, desc *codec.Method) (*knownChooser, error) {
	item, request, ok := strings.Cut(text, "=")
	if !ok {
		return nil, fmt.Errorf("%q: want a field of the items of a list, and one of the request, as in \"ListPodSandbox.labels = filter.labels\"", text)
	}
	request, keys, but := strings.Cut(request, " without ")
	listed, at, _ := strings.Cut(strings.TrimSpace(item), ".")
	c := &knownChooser{backends: t.backends, newTo: t.newTo, panics: t.panics}
	var err error
	if c.path, err = rewrite.ParsePath(desc.Input, strings.TrimSpace(request)); err != nil {
		return nil, err
	}
	if c.path.Leaf().IsMap() {
		c.without = map[string]bool{}
	} else if but || !c.path.IsText() {
		return nil, fmt.Errorf("path %s does not lead to a string; \"without\" is for maps", c.path)
	}
	for but {
		var quoted string
		quoted, keys, but = strings.Cut(keys, ",")
		key, err := strconv.Unquote(strings.TrimSpace(quoted))
		if err != nil {
			return nil, fmt.Errorf("without: %s has no quotes; want keys in quotes, as in: without \"app\", \"tier\"", strings.TrimSpace(quoted))
		}
		c.without[key] = true
	}
	m, list := findList(listed, cfg.Profile, cfg.Schema)
	switch {
	case m == nil || !slices.ContainsFunc(cfg.Profile.Known.Lists, func(l inventory.List) bool { return l.List == listed }):
		return nil, fmt.Errorf("the profile's known.lists has no list %q", listed)
	case c.without != nil:
		if c.item, err = rewrite.ParsePath(list.Message(), at); err == nil && !c.item.Leaf().IsMap() {
			err = fmt.Errorf("path %s does not lead to a map", at)
		}
	case at != "":
		c.item, err = rewrite.ParseTextPath(list.Message(), at)
	}
	c.list = m.Name
	return c, err
}

// lookup finds a backend for a request. If wanted is not negative, the request wants that
// backend. Before lookup gives up it refreshes the lists in which something may have changed: a
// client that has made an object may name it in its next call.
func (c *knownChooser) lookup(ctx context.Context, body []byte, wanted int) (int, error) {
	has, err := c.matcher(body)
	if err != nil || has == nil {
		return -1, err
	}
	// If an object was moved to another backend, both may list it for a while. So the backend that the
	// request names, or that gets new objects, is asked first.
	if wanted < 0 && c.newTo > 0 {
		wanted = c.newTo
	}
	if wanted >= 0 && c.without == nil {
		if !has(wanted) {
			_ = c.panics.Run("finding a name", func() { c.refresh(ctx, wanted) }) // the hook reports a panic; has then does not find the name
		}
		if has(wanted) {
			return wanted, nil
		}
	}
	if b := c.find(has); b >= 0 {
		return b, nil
	}
	refreshUntil(ctx, c.panics, len(c.backends), c.refresh, func() bool { return c.without == nil && c.find(has) >= 0 })
	return c.find(has), nil
}

// find returns the first backend that has an item with the value. For a map it returns the only
// backend that has one: different objects may have the same map.
func (c *knownChooser) find(has func(int) bool) int {
	found := -1
	for i := range c.backends {
		switch {
		case !has(i):
		case c.without == nil:
			return i
		case found >= 0:
			return -1
		default:
			found = i
		}
	}
	return found
}

// refresh asks a backend for its list again, if the cache may lack a change.
func (c *knownChooser) refresh(ctx context.Context, backend int) {
	if known := c.backends[backend].Known; known != nil {
		known.Renew(ctx, c.list)
	}
}

// matcher returns a function that reports whether a backend has an item with the value or map of
// the request. The function is nil if the request has neither.
func (c *knownChooser) matcher(body []byte) (func(backend int) bool, error) {
	known := func(b int) *Memory { return c.backends[b].Known }
	if c.without != nil {
		want, err := c.entries(c.path, body)
		if err != nil || len(want) == 0 {
			return nil, err
		}
		same := func(item []byte) bool {
			got, err := c.entries(c.item, item)
			return err == nil && maps.Equal(got, want)
		}
		return func(b int) bool { return known(b) != nil && known(b).Any(c.list, same) }, nil
	}
	value, _, err := c.path.Lookup(body)
	if err != nil || len(value) == 0 {
		return nil, err
	}
	same := func(item []byte) bool {
		got, ok, err := c.item.Lookup(item)
		return err == nil && ok && string(got) == string(value)
	}
	return func(b int) bool {
		return known(b) != nil && (c.item == nil && known(b).Named(c.list, string(value)) || c.item != nil && known(b).Any(c.list, same))
	}, nil
}

// entries returns the entries of a map that count.
func (c *knownChooser) entries(p *rewrite.Path, message []byte) (map[string]string, error) {
	entries := map[string]string{}
	err := p.Entries(message, func(k, v []byte) error {
		if !c.without[string(k)] {
			entries[string(k)] = string(v)
		}
		return nil
	})
	return entries, err
}
