package director

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// who gets a call.
type who int

const (
	one     who = iota // one backend
	all                // every backend, and their replies are merged
	firstOf            // one backend after another, until one has what is asked for
	nobody             // no backend can have what is asked for: the reply is empty
)

// destination is where a call goes.
type destination struct {
	who     who
	backend int // for one
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
	var few [8]rewrite.Found
	names, err := m.request.Find(few[:0], body)
	if err != nil {
		return destination{}, err
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
			return t.mismatch(m, &routeError{codes.NotFound, fmt.Sprintf("%s %q: %s", n.kind, f.Value, t.nowhere())})
		case v == untold:
			return destination{}, &routeError{codes.Unavailable, fmt.Sprintf("%s %q: a backend that may have it is down, and nobody knows what it has; criproxy status shows which", n.kind, f.Value)}
		case v == ambiguous:
			return destination{}, &routeError{codes.InvalidArgument, fmt.Sprintf("%s %q: several begin so; use more of the id", n.kind, f.Value)}
		case v == primarys && bare == nil:
			bare = &names[i]
		case v == decided && owner >= 0 && owner != b:
			return t.mismatch(m, t.conflict(by, f))
		case v == decided:
			owner, by = b, f
		}
	}
	if owner < 0 {
		if owner, err = t.choose(ctx, m, body); err != nil {
			return destination{}, err
		}
		if owner > 0 && bare != nil {
			return t.mismatch(m, &routeError{codes.InvalidArgument, fmt.Sprintf(
				"the request is for backend %s, but %s %q is the primary's", t.backends[owner], t.classes[bare.Class].name, bare.Value)})
		}
	} else if owner > 0 && bare != nil {
		return t.mismatch(m, t.conflict(by, *bare))
	}
	switch {
	case owner >= 0:
		return destination{one, owner}, nil
	case bare != nil:
		return destination{one, 0}, nil
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
			return destination{one, 0}, nil
		}
	}
	return destination{one, t.newTo}, nil
}

// nowhere says why a name is nobody's.
func (t *table) nowhere() string {
	if t.native {
		return "no backend has it"
	}
	return "nothing is known here by that prefix; there is " + t.names()
}

// unclaimed is where a call goes in which nothing says whose it is.
func (t *table) unclaimed(m *method) destination {
	switch {
	case len(t.backends) == 1 && !m.endless: // there may be more before it ends
		return destination{one, 0}
	case m.all:
		return destination{who: all}
	case m.first != nil:
		return destination{who: firstOf}
	default:
		return destination{one, 0}
	}
}

// choose asks the choosers of a method; a negative backend means that none knew.
func (t *table) choose(ctx context.Context, m *method, body []byte) (int, error) {
	for _, c := range m.choosers {
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
				"%s is %q, which is no backend; there is %s", c.where, value, t.names())}
		}
	}
	return -1, nil
}

// value returns what a chooser chooses by.
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

func (t *table) conflict(a, b rewrite.Found) error {
	return &routeError{codes.InvalidArgument, fmt.Sprintf(
		"%s %q and %s %q belong to different backends, and one call can only go to one",
		t.classes[a.Class].name, a.Value, t.classes[b.Class].name, b.Value)}
}

// mismatch is what becomes of a request whose names no single backend can know:
// a list of what matches them is empty, anything else is an error.
func (t *table) mismatch(m *method, err error) (destination, error) {
	if m.all {
		return destination{who: nobody}, nil
	}
	var route *routeError
	if m.notFound && errors.As(err, &route) {
		err = &routeError{codes.NotFound, route.reason}
	}
	return destination{}, err
}
