package fakecri

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A table holds items by id, in order of insertion.
type table[T any] struct {
	kind string // what errors call an item
	byID map[string]*row[T]
	rows []*row[T]
	next int
}

type row[T any] struct {
	id    string
	place int // index in the order
	value *T
}

func newTable[T any](kind string) table[T] {
	return table[T]{kind: kind, byID: map[string]*row[T]{}}
}

func (t *table[T]) add(id string, value *T) {
	r := &row[T]{id: id, place: t.next, value: value}
	t.next++
	t.byID[id] = r
	t.rows = append(t.rows, r)
}

func (t *table[T]) remove(id string) {
	r, ok := t.byID[id]
	if !ok {
		return
	}
	delete(t.byID, id)
	i, _ := slices.BinarySearchFunc(t.rows, r.place, func(r *row[T], place int) int { return cmp.Compare(r.place, place) })
	t.rows = slices.Delete(t.rows, i, i+1)
}

// exact returns the item with the given id, or nil if there is none.
func (t *table[T]) exact(id string) *T {
	if r, ok := t.byID[id]; ok {
		return r.value
	}
	return nil
}

// get returns the item with the given id, or with the only id that begins with it. Its error is a
// status: NotFound if there is none, and Unknown if id is empty or ambiguous.
func (t *table[T]) get(id string) (*T, error) {
	r, err := t.row(id)
	if err != nil {
		return nil, err
	}
	return r.value, nil
}

func (t *table[T]) row(id string) (*row[T], error) {
	if r := t.byID[id]; r != nil {
		return r, nil
	}
	if id == "" {
		return nil, status.Errorf(codes.Unknown, "the request has no %s id", t.kind)
	}
	var found *row[T]
	if len(id) < len(sha256Prefix)+64 {
		for _, r := range t.rows {
			if !strings.HasPrefix(r.id, id) {
				continue
			}
			if found != nil {
				return nil, status.Errorf(codes.Unknown, "%s id %q is ambiguous: several ids begin with it", t.kind, id)
			}
			found = r
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "%s %q: not found", t.kind, id)
	}
	return found, nil
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
	for _, r := range t.rows {
		if !yield(r.value) {
			return
		}
	}
}
