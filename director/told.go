package director

import (
	"context"
	"sync"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// told remembers which backend a value belongs to, as earlier requests have told. It is safe for
// concurrent use, and outlives the tables of a director.
type told struct {
	mu       sync.Mutex
	now, old map[string]string // :: value → name of a backend; old is dropped when now is full
}

// maxTold is how many of the latest values told remembers at least.
const maxTold = 10_000

func (k *told) put(value, backend string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == nil || len(k.now) >= maxTold {
		k.now, k.old = map[string]string{}, k.now
	}
	k.now[value] = backend
}

func (k *told) get(value []byte) (backend string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if backend, ok = k.now[string(value)]; !ok {
		backend, ok = k.old[string(value)]
	}
	return backend, ok
}

// recallTold returns the recall func of a chooser by the value at a path.
func (t *table) recallTold(path *rewrite.Path) func(context.Context, []byte, int) (int, error) {
	return func(_ context.Context, body []byte, _ int) (int, error) {
		value, _, err := path.Lookup(body)
		if err != nil || len(value) == 0 {
			return -1, err
		}
		name, ok := t.told.get(value)
		if !ok {
			return -1, nil
		}
		if i, there := t.index[name]; there || name == t.backends[0].Name {
			return i, nil
		}
		return -1, nil
	}
}

// tell says where the requests of a method have a value to remember, and the name whose owner is the
// backend of that value.
type tell struct {
	value  *rewrite.Path
	name   *rewrite.Path
	naming *naming // of the name
}

func (t *table) compileTells(form map[string]string, desc *codec.Method, classes *rewrite.Classes) ([]tell, error) {
	var all []tell
	for _, at := range sortedKeys(form) {
		value, err := rewrite.ParseTextPath(desc.Input, at)
		if err != nil {
			return nil, err
		}
		name, naming, err := t.namePath(desc.Input, form[at], classes)
		if err != nil {
			return nil, err
		}
		all = append(all, tell{value, name, naming})
	}
	return all, nil
}

// listen remembers the values of a request, by the tells of its method.
func (t *table) listen(ctx context.Context, m *method, body []byte) error {
	for _, l := range m.tells {
		value, _, err := l.value.Lookup(body)
		if err != nil {
			return err
		}
		if len(value) == 0 {
			continue
		}
		name, _, err := l.name.Lookup(body)
		if err != nil {
			return err
		}
		if b, v := l.naming.owner(ctx, name); v == decided || v == primarys {
			t.told.put(string(value), t.backends[b].Name)
		}
	}
	return nil
}
