package director

import (
	"bytes"
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// An asker finds out whether the primary has a name, by a list with the name as its filter. It is
// immutable. The nil asker is for kinds without such a list, and finds no name.
type asker struct {
	primary   codec.Caller
	method    string
	filter    *rewrite.Path // in the request
	items, id *rewrite.Path // the list in the reply, and the id in an item
}

// byBeginning is the Match of a [inventory.Filter] that takes the beginning of a name.
const byBeginning = "prefix"

// compileAsker finds the list of a kind that has a filter by id. It skips mistakes in the
// profile's lists, which [backend.Backend.Stage] reports.
func compileAsker(kind string, p *Profile, s *codec.Schema, primary codec.Caller) *asker {
	for _, l := range p.Known.Lists {
		i := slices.IndexFunc(l.Filters, func(f inventory.Filter) bool { return f.Item == l.ID && f.Match == byBeginning })
		if l.Kind != kind || i < 0 {
			continue
		}
		m, list := findList(l.List, p, s)
		if m == nil {
			continue
		}
		filter, err := rewrite.ParsePath(m.Input, l.Filters[i].Request)
		if err != nil {
			continue
		}
		items, _ := rewrite.ParsePath(m.Output, string(list.Name())) // list is a field of m.Output
		if id, err := rewrite.ParsePath(list.Message(), l.ID); err == nil {
			return &asker{primary, m.Name, filter, items, id}
		}
	}
	return nil
}

// findList returns the method with a short name, and the list in its reply. Both are nil if there
// is no such method.
func findList(name string, p *Profile, s *codec.Schema) (*codec.Method, protoreflect.FieldDescriptor) {
	for _, m := range p.Describes(s) {
		if fd := inventory.Repeated(m.Output); fd != nil && profile.ShortName(m.Name) == name {
			return m, fd
		}
	}
	return nil, nil
}

// has asks the primary whether it has a name that is, or begins with, name. An error means that nobody knows, which is not the same
// as no: the caller must not go on as if the backend had no such name.
func (a *asker) has(ctx context.Context, name []byte) (found bool, err error) {
	if a == nil {
		return false, nil
	}
	call := &codec.Call{Method: a.method, Request: codec.NewFrame(a.filter.Append(nil, name))}
	err = a.primary.Call(ctx, call)
	if status.Code(err) == codes.Unimplemented {
		return false, nil // it has nothing of this kind
	}
	if err != nil {
		return false, err
	}
	err = a.items.All(call.Reply.Bytes(), func(item []byte) error {
		id, _, err := a.id.Lookup(item)
		found = found || bytes.HasPrefix(id, name) // not every backend honours the filter
		return err
	})
	return found, err
}

// filtersByBeginning reports whether a request of a list may have only the beginning of a name.
func filtersByBeginning(p *Profile, desc *codec.Method) bool {
	return slices.ContainsFunc(p.Known.Lists, func(l inventory.List) bool {
		name := profile.ShortName(desc.Name)
		return (name == l.List || name == l.Stream) && slices.ContainsFunc(l.Filters, func(f inventory.Filter) bool { return f.Match == byBeginning })
	})
}
