package director

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// A chooser finds the backend of a call that no name decides, by a value in the request or in its metadata. It is immutable.
// There are two kinds: those with a lookup find out where the object is, and those with an owner read where the client
// wants it.
type chooser struct {
	kind  string
	where string // the path, as the profile has it
	path  *rewrite.Path
	key   string // of the metadata; used if path is nil
	owner func(ctx context.Context, value []byte) (backend int, v verdict)
	// lookup finds the backend that has the object, in the caches of the backends or among the
	// affinities. It gets the backend that the request wants, and returns a negative backend if it
	// finds none. It is nil for choosers that read the request alone, which have an owner.
	lookup func(ctx context.Context, body []byte, wanted int) (backend int, err error)
}

// compileChooser compiles one choice of a method. Its kind is known, told, backend, or the kind of a name, whose owner the value
// at the path then leads to.
func (t *table) compileChooser(cfg Config, form profile.ChooseForm, desc *codec.Method, byName map[string]rewrite.Class) (chooser, error) {
	c := chooser{kind: form.Kind, where: form.Path}
	if form.Kind == "known" {
		k, err := t.compileKnown(cfg, form.Path, desc)
		if err != nil {
			return c, fmt.Errorf("known: %w", err)
		}
		c.where, c.lookup = k.path.String(), k.lookup
		return c, nil
	}
	if quoted, ok := strings.CutPrefix(form.Path, "metadata["); ok && form.Kind != "told" {
		key, err := strconv.Unquote(strings.TrimSuffix(quoted, "]"))
		if err != nil || key != strings.ToLower(key) {
			return c, fmt.Errorf("%s: want a key of the metadata in quotes and lower case, as in metadata[\"backend\"]", form.Path)
		}
		c.key = key
	} else {
		var err error
		if c.path, err = rewrite.ParseTextPath(desc.Input, form.Path); err != nil {
			return c, err
		}
	}
	switch form.Kind {
	case "told":
		c.lookup = t.lookupAffinity(c.path)
	case "backend":
		c.owner = t.ownerByName
	default:
		c.owner = t.classes[byName[form.Kind]].naming.owner
	}
	return c, nil
}

// ownerByName is the owner func for values that are names of backends.
func (t *table) ownerByName(_ context.Context, value []byte) (int, verdict) {
	if len(value) == 0 {
		return 0, undecided
	}
	if i := t.place(string(value)); i >= 0 {
		return i, decided
	}
	if string(value) == t.backends[0].String() { // a primary without a name
		return 0, decided
	}
	return 0, ownerless
}

// choose asks the choosers of a method for the backend; a negative one means that none decided.
// The backend that has an object goes before the one that the request wants for it.
func (t *table) choose(ctx context.Context, m *method, body []byte) (int, error) {
	wanted, wantedErr := t.wanted(ctx, m, body)
	for _, c := range m.choosers {
		if c.lookup == nil {
			continue
		}
		if b, err := c.lookup(ctx, body, wanted); err != nil || b >= 0 {
			return b, err
		}
	}
	return wanted, wantedErr
}

// wanted returns the backend that the request wants: the first chooser that finds one decides.
func (t *table) wanted(ctx context.Context, m *method, body []byte) (int, error) {
	for _, c := range m.choosers {
		if c.lookup != nil {
			continue
		}
		value, found, err := c.value(ctx, body)
		if err != nil {
			return -1, err
		}
		if !found {
			continue
		}
		switch b, v := c.owner(ctx, value); v {
		case decided:
			return b, nil
		case ownerless:
			return -1, &routeError{codes.InvalidArgument, fmt.Sprintf(
				"%s: unknown backend %q; %s", c.where, value, t.names())}
		}
	}
	return -1, nil
}

// value returns the value by which the chooser chooses.
func (c *chooser) value(ctx context.Context, body []byte) ([]byte, bool, error) {
	if c.path != nil {
		return c.path.Lookup(body)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	if v := md[c.key]; len(v) > 0 {
		return []byte(v[0]), true, nil
	}
	return nil, false, nil
}
