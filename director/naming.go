package director

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// verdict is what a front name alone decides about its owner. It is no error by itself: whether a call about an ownerless name is
// NotFound, about an unknown owner Unavailable, or goes to the primary, is decided where the call is routed, because a filter of
// a list with such a name means an empty list.
type verdict int

const (
	undecided    verdict = iota // nothing
	decided                     // one backend owns the name
	ofPrimary                   // the primary owns the name, because it has no prefix
	ownerless                   // no backend owns the name
	unknownOwner                // a backend that does not answer may own the name
	ambiguous                   // several names begin with it
)

// A naming translates the names of one kind, and finds their owners. It is immutable. There are three: prefixed puts the name
// of the backend before its names, mapped takes them from a table, and native leaves them as they are.
//
// A name that a client got from a backend leads back to it: toBack undoes toFront, and owner finds the backend again.
type naming struct {
	kind    string
	decides bool // a name of this kind in a request decides where the request goes
	owner   func(ctx context.Context, front []byte) (backend int, v verdict)
	// among is owner for a list: it returns the backends that may have items with the name or, if
	// begins, with a name that begins with it. Nil means any backend.
	among func(front []byte, begins bool) []int
	// toBack and toFront append the translation of a name of the backend. They
	// leave the empty name empty, unless a table has it.
	toBack  func(dst, front []byte, backend int) []byte
	toFront func(dst, back []byte, backend int) []byte
	changes []bool // by backend: whether any of its names differs in front
}

// prefixed is the naming by prefix: in front, the names of every backend but the primary carry the
// name of the backend. A name with a prefix that is no backend's may still be the primary's, so
// owner asks the primary for it. If bareIsPrimarys is not set, a name without a prefix says nothing
// about its owner, as with images, which any backend may have.
func prefixed(kind, sep string, bareIsPrimarys bool, backends []Backend, ask *asker) *naming {
	prefixes := make([]string, len(backends))
	changes := make([]bool, len(backends))
	index := map[string]int{} // :: backend's name → its place
	for i, b := range backends {
		if i > 0 {
			prefixes[i], changes[i] = b.Name+sep, true
			index[b.Name] = i
		}
	}
	separator := []byte(sep)
	// read is owner without asking the primary.
	read := func(front []byte) (int, verdict) {
		at := bytes.Index(front, separator)
		if at >= 0 {
			if i, ok := index[string(front[:at])]; ok {
				return i, decided
			}
		}
		switch {
		case !bareIsPrimarys || len(front) == 0:
			return 0, undecided
		case at >= 0:
			return 0, ownerless
		default:
			return 0, ofPrimary
		}
	}
	return &naming{
		kind:    kind,
		decides: true,
		changes: changes,
		owner: func(ctx context.Context, front []byte) (int, verdict) {
			i, v := read(front)
			if v != ownerless {
				return i, v
			}
			// A primary that is a multiplexer itself has names with prefixes of its own.
			switch found, err := ask.has(ctx, front); {
			case err != nil:
				return 0, unknownOwner
			case found:
				return 0, ofPrimary
			default:
				return 0, ownerless
			}
		},
		among: func(front []byte, begins bool) []int {
			i, v := read(front)
			switch v {
			case undecided:
				return nil
			case decided:
				return []int{i}
			}
			some := []int{0} // the primary answers, perhaps that it has no such item
			for i, prefix := range prefixes {
				if i > 0 && begins && strings.HasPrefix(prefix, string(front)) {
					some = append(some, i)
				}
			}
			return some
		},
		toBack: func(dst, front []byte, backend int) []byte {
			prefix := prefixes[backend]
			if bareIsPrimarys && len(front) < len(prefix) && strings.HasPrefix(prefix, string(front)) {
				return dst // front is the beginning of the prefix: it matches all names of the backend
			}
			return append(dst, bytes.TrimPrefix(front, []byte(prefix))...)
		},
		toFront: func(dst, back []byte, backend int) []byte {
			if len(back) == 0 {
				return dst
			}
			return append(append(dst, prefixes[backend]...), back...)
		},
	}
}

// mapped is the naming by table: a name that is in no table is the same on both sides, and says
// nothing about its owner. No two backends may have the same front name.
func mapped(kind string, backends []Backend) (*naming, error) {
	owners := map[string]int{} // :: front name → backend
	toBack := make([]map[string]string, len(backends))
	toFront := make([]map[string]string, len(backends))
	changes := make([]bool, len(backends))
	for i, b := range backends {
		toBack[i], toFront[i] = b.Maps[kind], map[string]string{}
		for _, front := range sortedKeys(toBack[i]) { // clients see the first of several front names for one back name
			if front == "" {
				return nil, fmt.Errorf("backend %s: %s: the empty name cannot be mapped; it means the default on every backend", b, kind)
			}
			if other, twice := owners[front]; twice {
				return nil, fmt.Errorf("backend %s: %s %q is already mapped to backend %s", b, kind, front, backends[other])
			}
			owners[front] = i
			back := toBack[i][front]
			if _, ok := toFront[i][back]; !ok && (i > 0 || back != "") { // the primary's empty name stays empty in front
				toFront[i][back] = front
			}
			changes[i] = changes[i] || front != back
		}
	}
	translate := func(dst, name []byte, table map[string]string) []byte {
		if to, ok := table[string(name)]; ok {
			return append(dst, to...)
		}
		return append(dst, name...)
	}
	return &naming{
		kind:    kind,
		changes: changes,
		owner: func(_ context.Context, front []byte) (int, verdict) {
			if i, ok := owners[string(front)]; ok {
				return i, decided
			}
			return 0, undecided
		},
		among: func([]byte, bool) []int { return nil },
		toBack: func(dst, front []byte, backend int) []byte {
			return translate(dst, front, toBack[backend])
		},
		toFront: func(dst, back []byte, backend int) []byte {
			return translate(dst, back, toFront[backend])
		},
	}, nil
}

// native is the naming that changes nothing, and finds the owner of a name in the caches of the
// backends. If none has the name, it refreshes them. The verdict on a name that no backend has is
// undecided: the primary then answers as it would alone, so that a client succeeds that stops an
// object which is already gone. The name may also be in a list that is not known. Then the verdict is
// unknownOwner, and the call fails: the primary would say that there is no such object.
func native(kind string, backends []Backend, panics recovery.Hook) *naming {
	same := func(dst, name []byte, _ int) []byte { return append(dst, name...) }
	return &naming{
		kind:    kind,
		decides: true,
		changes: make([]bool, len(backends)),
		toBack:  same,
		toFront: same,
		owner: func(ctx context.Context, name []byte) (int, verdict) {
			if len(name) == 0 {
				return 0, undecided
			}
			b, v := holder(kind, name, backends)
			if v != undecided {
				return b, v
			}
			refreshUntil(ctx, panics, len(backends), func(ctx context.Context, b int) { backends[b].Known.Refresh(ctx, kind) }, func() bool {
				// A whole id has one owner. Ids of others may begin with it if it is cut short.
				return slices.ContainsFunc(backends, func(b Backend) bool { return b.Known.Match(kind, name).Whole })
			})
			b, v = holder(kind, name, backends)
			if v == undecided && slices.ContainsFunc(backends, func(b Backend) bool { return b.Known.MayHold(kind) }) {
				return 0, unknownOwner
			}
			return b, v
		},
		among: func(name []byte, _ bool) []int {
			if b, v := holder(kind, name, backends); v == decided {
				return []int{b}
			}
			return nil // each backend answers with the items that it has
		},
	}
}

// holder finds the backend that has name, or the only name that begins with it, or else the first backend that had name. It
// reads the caches as they are, and asks no backend.
func holder(kind string, name []byte, backends []Backend) (int, verdict) {
	at, was, n := 0, -1, 0
	for i, b := range backends {
		m := b.Known.Match(kind, name)
		if m.N > 0 {
			at, n = i, n+m.N
		}
		if m.Former && was < 0 {
			was = i
		}
	}
	switch {
	case n > 1:
		return 0, ambiguous
	case n == 1:
		return at, decided
	case was >= 0:
		return was, decided
	}
	return 0, undecided
}
