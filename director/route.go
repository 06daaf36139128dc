package director

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// who gets a call.
type who int

const (
	one     who = iota // one backend
	all                // several backends, and their replies are merged
	firstOf            // one backend after another, until one has what is asked for
	nobody             // no backend can have what is asked for: the reply is empty
)

// destination is where a call goes.
type destination struct {
	who     who
	backend int   // for one
	among   []int // for all
}

// A routeError is a request that cannot be sent to any backend.
type routeError struct {
	code   codes.Code
	reason string
}

func (e *routeError) Error() string { return e.reason }

// route finds the destination of a call by the rules in the package's
// documentation. It is a function of the table and the bytes alone.
func (t *table) route(ctx context.Context, m *method, request *codec.Frame) (destination, error) {
	if m.request == nil && len(m.choosers) == 0 && !m.isNew {
		return t.unclaimed(m), nil // nothing in the message can matter: do not even join its pieces
	}
	body := request.Bytes()
	if err := t.listen(ctx, m, body); err != nil {
		return destination{}, err
	}
	var few [8]rewrite.Found
	names, err := m.request.Find(few[:0], body)
	if err != nil {
		return destination{}, err
	}
	if m.all {
		return t.routeList(ctx, m, body, names)
	}
	owner, by := -1, rewrite.Found{} // the backend, and the name that says so
	var bare *rewrite.Found
	for i, f := range names {
		n := t.classes[f.Class].naming
		if n == nil || !n.decides {
			continue
		}
		b, v := n.owner(ctx, f.Value)
		switch {
		case v == ownerless:
			return destination{}, &routeError{codes.NotFound, fmt.Sprintf("%s %q: nothing is known here by that prefix; there is %s", n.kind, f.Value, t.names())}
		case v == untold:
			return destination{}, &routeError{codes.Unavailable, fmt.Sprintf("%s %q: a backend that may have it cannot be asked, and nobody knows what it has; criproxy status shows which", n.kind, f.Value)}
		case v == ambiguous:
			return destination{}, &routeError{codes.InvalidArgument, fmt.Sprintf("%s %q: several begin so; use more of the id", n.kind, f.Value)}
		case v == primarys && bare == nil:
			bare = &names[i]
		case v == decided && owner >= 0 && owner != b:
			return destination{}, t.mismatch(m, t.conflict(by, f))
		case v == decided:
			owner, by = b, f
		}
	}
	if owner < 0 {
		if owner, err = t.choose(ctx, m, body); err != nil {
			return destination{}, err
		}
		if owner > 0 && bare != nil {
			return destination{}, t.mismatch(m, &routeError{codes.InvalidArgument, fmt.Sprintf(
				"the request is for backend %s, but %s %q is the primary's", t.backends[owner], t.classes[bare.Class].name, bare.Value)})
		}
	} else if owner > 0 && bare != nil {
		return destination{}, t.mismatch(m, t.conflict(by, *bare))
	}
	switch {
	case owner >= 0:
		return destination{who: one, backend: owner}, nil
	case bare != nil:
		return destination{who: one}, nil
	case m.isNew && t.newTo > 0:
		return t.newcomer(m, body)
	default:
		return t.unclaimed(m), nil
	}
}

// newcomer is where a call goes that makes something new, and of which nothing says
// whose it is.
func (t *table) newcomer(m *method, body []byte) (destination, error) {
	if m.unlessNew != nil {
		value, _, err := m.unlessNew.Lookup(body)
		if err != nil {
			return destination{}, err
		}
		if len(value) > 0 {
			return destination{who: one}, nil
		}
	}
	return destination{who: one, backend: t.newTo}, nil
}

// unclaimed is where a call goes in which nothing says whose it is.
func (t *table) unclaimed(m *method) destination {
	switch {
	case len(t.backends) == 1 && !m.endless: // there may be more before it ends
		return destination{who: one}
	case m.all:
		return destination{who: all, among: t.everyone}
	case m.first != nil:
		return destination{who: firstOf}
	default:
		return destination{who: one}
	}
}

func (t *table) conflict(a, b rewrite.Found) error {
	return &routeError{codes.InvalidArgument, fmt.Sprintf(
		"%s %q and %s %q belong to different backends, and one call can only go to one",
		t.classes[a.Class].name, a.Value, t.classes[b.Class].name, b.Value)}
}

// mismatch is the error of a request whose names no single backend can know.
func (t *table) mismatch(m *method, err error) error {
	var route *routeError
	if m.notFound && errors.As(err, &route) {
		return &routeError{codes.NotFound, route.reason}
	}
	return err
}

// routeList finds the destination of a list: each name in it narrows down who can have what
// matches. Nobody is no error, and its answer is empty.
func (t *table) routeList(ctx context.Context, m *method, body []byte, names []rewrite.Found) (destination, error) {
	var among []int // nil: all
	for _, f := range names {
		n := t.classes[f.Class].naming
		if n == nil || !n.decides {
			continue
		}
		switch some := n.among(f.Value, m.begins); {
		case some == nil:
		case among == nil:
			among = some
		default:
			among = slices.DeleteFunc(among, func(b int) bool { return !slices.Contains(some, b) })
		}
	}
	if among == nil {
		owner, err := t.choose(ctx, m, body)
		if err != nil {
			return destination{}, err
		}
		if owner < 0 {
			return t.unclaimed(m), nil
		}
		among = []int{owner}
	}
	switch len(among) {
	case 0:
		return destination{who: nobody}, nil
	case 1:
		return destination{who: one, backend: among[0]}, nil
	default:
		return destination{who: all, among: among}, nil
	}
}
