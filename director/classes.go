package director

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/criproxy/criproxy/rewrite"
)

// A class says what a field holds: a kind of name, or content for an edit. It is immutable, and belongs to a table. Its number
// is its index in table.classes, and the [rewrite.Class] of its fields in the plans of that table: a plan means nothing to
// another table, because a reload may number the kinds anew.
type class struct {
	name   string
	naming *naming // nil for an edit
	edits  []Edit  // by backend; nil for a name
}

// compileClasses fills t.classes, and returns their numbers by their names. The Front of an edit may be called only once all are
// compiled.
func (t *table) compileClasses(cfg Config) (map[string]rewrite.Class, error) {
	byName := map[string]rewrite.Class{}
	add := func(c *class) {
		byName[c.name] = rewrite.Class(len(t.classes))
		t.classes = append(t.classes, c)
	}
	var errs []error
	for _, kind := range sortedKeys(cfg.Profile.Names) {
		form := cfg.Profile.Names[kind]
		if form.Map != "" {
			n, err := mapped(form.Map, cfg.Backends)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			add(&class{name: kind, naming: n})
			continue
		}
		sep, err := form.Separator()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if cfg.NativeNames && form.Bare == "primary" {
			add(&class{name: kind, naming: native(kind, cfg.Backends, cfg.Panicked)})
			continue
		}
		add(&class{name: kind, naming: prefixed(kind, sep, form.Bare == "primary", cfg.Backends, compileAsker(kind, cfg.Profile, cfg.Schema, t.calls[0]))})
	}
	for _, name := range sortedKeys(cfg.Profile.Edits) {
		make, ok := cfg.Edits[cfg.Profile.Edits[name].Replies]
		if !ok {
			errs = append(errs, fmt.Errorf("edits.%s.replies: there is no code called %q", name, cfg.Profile.Edits[name].Replies))
			continue
		}
		c := &class{name: name}
		for i, b := range cfg.Backends {
			c.edits = append(c.edits, make(EditContext{b, cfg.Backends, i == 0, func(dst []byte, kind string, name []byte) []byte {
				return t.classes[byName[kind]].naming.toFront(dst, name, i)
			}}))
		}
		add(c)
	}
	return byName, errors.Join(errs...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
