package director

import (
	"context"
	"slices"

	"github.com/criproxy/criproxy/codec"
)

// elsewhere reports whether the profile names a method, which the schema does not have, as one that
// finds an object: the director then asks one backend after another for it.
func (t *table) elsewhere(name string) bool {
	return len(t.backends) > 1 && slices.Contains(t.lookups, name)
}

// lookUp asks one backend after another until one has the object that the call asks for. If none
// has it, the client gets the error of the primary, as if the primary were alone.
func (t *table) lookUp(ctx context.Context, call *codec.Call) error {
	err := t.calls[0].Call(ctx, call)
	if err == nil {
		return nil
	}
	for _, c := range t.calls[1:] {
		another := &codec.Call{Method: call.Method, Request: call.Request}
		if ctx.Err() == nil && c.Call(ctx, another) == nil {
			call.Answer(another)
			return nil
		}
	}
	return err
}
