package director

import (
	"context"
	"sync"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// affinities remembers which backend a value belongs to, as earlier requests have said. It outlives the tables of a director,
// so it holds names of backends: a backend may have another place after a reload, or be gone. It is safe for concurrent use.
type affinities struct {
	mu       sync.Mutex
	now, old map[string]string // :: value → name of a backend; old is dropped when now is full
}

// maxAffinities is how many of the latest values affinities remembers at least. It never has twice as many.
const maxAffinities = 10_000

// put remembers a value. It drops the older half of all values when the newer half is full.
func (a *affinities) put(value, backend string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now == nil || len(a.now) >= maxAffinities {
		a.now, a.old = map[string]string{}, a.now
	}
	a.now[value] = backend
}

// get returns the backend of a value, if one of the latest maxAffinities values at least was this one.
func (a *affinities) get(value []byte) (backend string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if backend, ok = a.now[string(value)]; !ok {
		backend, ok = a.old[string(value)]
	}
	return backend, ok
}

// lookupAffinity returns the lookup func of a chooser by the value at a path.
func (t *table) lookupAffinity(path *rewrite.Path) func(context.Context, []byte, int) (int, error) {
	return func(_ context.Context, body []byte, _ int) (int, error) {
		value, _, err := path.Lookup(body)
		if err != nil || len(value) == 0 {
			return -1, err
		}
		if name, ok := t.affinities.get(value); ok {
			return t.place(name), nil
		}
		return -1, nil
	}
}

// An affinity says where the requests of a method have a value to remember, and the name whose owner is the backend of that
// value. The profile lists them under tells. It is immutable; what it finds goes to the affinities of the director when
// the request is routed, whatever the backend answers: kubelet may ask for the image before the pod is there.
type affinity struct {
	value  *rewrite.Path
	name   *rewrite.Path
	naming *naming // of the name
}

// compileAffinities compiles the tells of a method: path of a value → path of a name.
func (t *table) compileAffinities(form map[string]string, desc *codec.Method, classes *rewrite.Classes) ([]affinity, error) {
	var all []affinity
	for _, at := range sortedKeys(form) {
		value, err := rewrite.ParseTextPath(desc.Input, at)
		if err != nil {
			return nil, err
		}
		name, naming, err := t.namePath(desc.Input, form[at], classes)
		if err != nil {
			return nil, err
		}
		all = append(all, affinity{value, name, naming})
	}
	return all, nil
}

// rememberAffinities remembers the values of a request.
func (t *table) rememberAffinities(ctx context.Context, m *method, body []byte) error {
	for _, a := range m.affinities {
		value, _, err := a.value.Lookup(body)
		if err != nil {
			return err
		}
		if len(value) == 0 {
			continue
		}
		name, _, err := a.name.Lookup(body)
		if err != nil {
			return err
		}
		if b, v := a.naming.owner(ctx, name); v == decided || v == ofPrimary {
			t.affinities.put(string(value), t.backends[b].Name)
		}
	}
	return nil
}
