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

// spread is how many backends get a call. With toOne and toFirst the client gets the answer of one backend, with its header and
// trailer; with toAll and toNone the director makes the reply.
type spread int

const (
	toOne   spread = iota // one backend
	toAll                 // several backends, whose replies are merged
	toFirst               // one backend after another, until one has what the call asks for
	toNone                // no backend can have what the call asks for: the reply is empty
)

// A destination says where a call goes. It is decided once for each call, from its first message, and means the table that has
// decided it: backend and among are places in its list of backends. A reload does not change it.
type destination struct {
	spread  spread
	backend int   // of toOne
	among   []int // of toAll
}

// A routeError is the error of a request that the director cannot send to any backend. The client gets code and reason, and no
// backend has had the call: whoever retries it repeats nothing.
type routeError struct {
	code   codes.Code
	reason string
}

func (e *routeError) Error() string { return e.reason }

// route finds the destination of a call from the table and the bytes of the request, by the rules
// in the package documentation.
func (t *table) route(ctx context.Context, m *method, request *codec.Frame) (destination, error) {
	if m.request == nil && len(m.choosers) == 0 && !m.isNew {
		return t.unclaimed(m), nil // no field of the message matters: do not join its pieces
	}
	body := request.Bytes()
	if err := t.rememberAffinities(ctx, m, body); err != nil {
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
	owner, by := -1, rewrite.Found{} // the backend, and the name that it owns
	var bare *rewrite.Found
	for i, f := range names {
		n := t.classes[f.Class].naming
		if n == nil || !n.decides {
			continue
		}
		b, v := n.owner(ctx, f.Value)
		switch {
		case v == ownerless:
			return destination{}, &routeError{codes.NotFound, fmt.Sprintf("%s %q: no backend has that prefix; %s", n.kind, f.Value, t.names())}
		case v == unknownOwner:
			return destination{}, &routeError{codes.Unavailable, fmt.Sprintf("%s %q: a backend that may have it does not answer, and no cache has its names; criproxy status shows which backend", n.kind, f.Value)}
		case v == ambiguous:
			return destination{}, &routeError{codes.InvalidArgument, fmt.Sprintf("%s %q: several ids begin with it; use more of the id", n.kind, f.Value)}
		case v == ofPrimary && bare == nil:
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
		return destination{spread: toOne, backend: owner}, nil
	case bare != nil:
		return destination{spread: toOne}, nil
	case m.isNew && t.newTo > 0:
		return t.newcomer(m, body)
	default:
		return t.unclaimed(m), nil
	}
}

// newcomer is the destination of a call that makes something new, if neither a name nor a
// chooser decides.
func (t *table) newcomer(m *method, body []byte) (destination, error) {
	if m.unlessNew != nil {
		value, _, err := m.unlessNew.Lookup(body)
		if err != nil {
			return destination{}, err
		}
		if len(value) > 0 {
			return destination{spread: toOne}, nil
		}
	}
	return destination{spread: toOne, backend: t.newTo}, nil
}

// unclaimed is the destination of a call if neither a name nor a chooser decides.
func (t *table) unclaimed(m *method) destination {
	switch {
	case len(t.backends) == 1 && !m.endless: // a reload may add backends before it ends
		return destination{spread: toOne}
	case m.all:
		return destination{spread: toAll, among: t.everyone}
	case m.first != nil || m.lookup:
		return destination{spread: toFirst}
	default:
		return destination{spread: toOne}
	}
}

// conflict is the error of a request with two names of different backends.
func (t *table) conflict(a, b rewrite.Found) error {
	return &routeError{codes.InvalidArgument, fmt.Sprintf(
		"%s %q and %s %q belong to different backends, and one call can only go to one",
		t.classes[a.Class].name, a.Value, t.classes[b.Class].name, b.Value)}
}

// mismatch returns the error of a request whose names belong to several backends.
func (t *table) mismatch(m *method, err error) error {
	var route *routeError
	if m.notFound && errors.As(err, &route) {
		return &routeError{codes.NotFound, route.reason}
	}
	return err
}

// routeList finds the destination of a list: each name in the request narrows down the backends
// that can have matching items. If no backend is left, the reply is empty; that is no error.
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
		return destination{spread: toNone}, nil
	case 1:
		return destination{spread: toOne, backend: among[0]}, nil
	default:
		return destination{spread: toAll, among: among}, nil
	}
}
