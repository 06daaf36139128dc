package fakecri

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A table holds items by id, in order of insertion.
type table[T any] struct {
	kind string // what errors call an item
	byID map[string]*T
	ids  []string // in order
}

func newTable[T any](kind string) table[T] { return table[T]{kind: kind, byID: map[string]*T{}} }

func (t *table[T]) add(id string, value *T) {
	t.byID[id] = value
	t.ids = append(t.ids, id)
}

func (t *table[T]) remove(id string) {
	if i := slices.Index(t.ids, id); i >= 0 {
		delete(t.byID, id)
		t.ids = slices.Delete(t.ids, i, i+1)
	}
}

// get returns the item with the given id, or with the only id that begins with it. Its error is a
// status: NotFound if there is none, and Unknown if id is empty or ambiguous.
func (t *table[T]) get(id string) (*T, error) {
	whole, err := t.find(id)
	return t.byID[whole], err
}

// find returns the whole id that begins with id. Its error is that of get.
func (t *table[T]) find(id string) (whole string, err error) {
	if t.byID[id] != nil {
		return id, nil
	}
	if id == "" {
		return "", status.Errorf(codes.Unknown, "the request has no %s id", t.kind)
	}
	for _, one := range t.ids {
		switch {
		case !strings.HasPrefix(one, id):
		case whole != "":
			return "", status.Errorf(codes.Unknown, "%s id %q is ambiguous: several ids begin with it", t.kind, id)
		default:
			whole = one
		}
	}
	if whole == "" {
		return "", status.Errorf(codes.NotFound, "%s %q: not found", t.kind, id)
	}
	return whole, nil
}

// ifThere calls do with the item called id. It is not an error if there is none.
func (t *table[T]) ifThere(id string, do func(*T)) error {
	value, err := t.get(id)
	if err == nil {
		do(value)
	}
	return unlessGone(err)
}

// answer answers a call about the item that find finds: do makes the reply, while the runtime changes
// nothing else.
func answer[T, Reply any](rt *Runtime, find func() (*T, error), do func(*T) (*Reply, error)) (*Reply, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	item, err := find()
	if err != nil {
		return nil, err
	}
	return do(item)
}

// named returns a function that gets the item with an id.
func (t *table[T]) named(id string) func() (*T, error) {
	return func() (*T, error) { return t.get(id) }
}

// unlessGone returns err, unless it is NotFound: stopping or removing an item that does not exist
// succeeds.
func unlessGone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// listed returns the results of show for the items that pass, in order.
func listed[T, M any](t *table[T], passes func(*T) bool, show func(*T) M) []M {
	var items []M
	for value := range t.all {
		if passes(value) {
			items = append(items, show(value))
		}
	}
	return items
}

// all yields the items in order.
func (t *table[T]) all(yield func(*T) bool) {
	for _, id := range t.ids {
		if !yield(t.byID[id]) {
			return
		}
	}
}
