package director

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/contain"
	"github.com/criproxy/criproxy/known"
	"github.com/criproxy/criproxy/rewrite"
)

// chooser finds the backend by one value in the request, or in the metadata that
// comes with it.
type chooser struct {
	kind  string
	where string // as the profile has it
	path  *rewrite.Path
	key   string // of the metadata, if there is no path
	owner func(ctx context.Context, value []byte) (backend int, v verdict)
}

func (t *table) compileChooser(form ChooseForm, desc *codec.Method, byName map[string]rewrite.Class) (chooser, error) {
	c := chooser{kind: form.Kind}
	at := form.Path
	if form.Kind == "known" {
		item, request, ok := strings.Cut(form.Path, "=")
		if !ok {
			return c, fmt.Errorf("known: is %q, want \"List.path = path\"", form.Path)
		}
		at = strings.TrimSpace(request)
		listed, path, _ := strings.Cut(strings.TrimSpace(item), ".")
		var err error
		if c.owner, err = t.ownerByMemory(listed, path); err != nil {
			return c, fmt.Errorf("known: %w", err)
		}
	}
	c.where = at
	if quoted, ok := strings.CutPrefix(at, "metadata["); ok {
		key, err := strconv.Unquote(strings.TrimSuffix(quoted, "]"))
		if err != nil || key != strings.ToLower(key) {
			return c, fmt.Errorf("%s: want metadata[\"key\"], the key in lower case", at)
		}
		c.key = key
	} else {
		var err error
		if c.path, err = rewrite.ParsePath(desc.Input, at); err != nil {
			return c, err
		}
		if !c.path.IsText() {
			return c, fmt.Errorf("path %s does not lead to a string", at)
		}
	}
	switch form.Kind {
	case "known":
	case "backend":
		c.owner = t.ownerByName
	default:
		c.owner = t.classes[byName[form.Kind]].naming.owner
	}
	return c, nil
}

// ownerByMemory finds the first backend that is known to have an item in a list.
// Before it is said that nobody has, those are asked where something has changed:
// a client that has made a thing names it in its next call. Nobody is the owner
// where nothing is remembered.
func (t *table) ownerByMemory(listed, path string) (func(context.Context, []byte) (int, verdict), error) {
	finders := make([]*known.Finder, len(t.backends))
	for i, b := range t.backends {
		if b.Known == nil {
			continue
		}
		var err error
		if finders[i], err = b.Known.Finder(listed, path); err != nil {
			return nil, err
		}
	}
	find := func(value []byte) (int, verdict) {
		for i, f := range finders {
			if f != nil && f.Has(value) {
				return i, decided
			}
		}
		return 0, silent
	}
	return func(ctx context.Context, value []byte) (int, verdict) {
		if len(value) == 0 {
			return 0, silent
		}
		// Who gets what is new goes first: a thing that was made anew there has left its
		// remains where it was before.
		if f := finders[t.newTo]; f != nil && t.newTo > 0 {
			if !f.Has(value) {
				_ = contain.Run("finding a name", func() { f.Renew(ctx) }) // told there; it is not found
			}
			if f.Has(value) {
				return t.newTo, decided
			}
		}
		i, v := find(value)
		if v == decided {
			return i, v
		}
		var all sync.WaitGroup
		for _, f := range finders {
			if f != nil {
				all.Go(func() { _ = contain.Run("finding a name", func() { f.Renew(ctx) }) }) // told there; it is not found
			}
		}
		all.Wait()
		return find(value)
	}, nil
}

// ownerByName is the owner of a value that is the name of a backend itself.
func (t *table) ownerByName(_ context.Context, value []byte) (int, verdict) {
	if len(value) == 0 {
		return 0, silent
	}
	if i, ok := t.index[string(value)]; ok {
		return i, decided
	}
	return 0, ownerless
}
