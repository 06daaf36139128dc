package memory

// mostFormer is how many of the latest ids a former remembers at least.
const mostFormer = 2_000

// former has the ids of items that a list had and has no more: its backend still counts as their owner. CRI wants
// stopping and removing an item that is gone to succeed, and only the backend that had the item can answer so. The next
// process gets them, too; otherwise it would ask another backend. The zero value has none.
type former struct {
	now, old map[string]struct{} // :: id; old is dropped when now is full
}

func (f *former) put(id string) {
	if f.now == nil || len(f.now) >= mostFormer {
		f.now, f.old = map[string]struct{}{}, f.now
	}
	f.now[id] = struct{}{}
}

func (f *former) has(id string) bool {
	_, now := f.now[id]
	_, old := f.old[id]
	return now || old
}

func (f *former) remove(id string) {
	delete(f.now, id)
	delete(f.old, id)
}

// all returns the ids in an order in which a former that gets them forgets the same ones first.
func (f *former) all() []string {
	ids := make([]string, 0, len(f.old)+len(f.now))
	for _, some := range []map[string]struct{}{f.old, f.now} {
		for id := range some {
			ids = append(ids, id)
		}
	}
	return ids
}

// leaves notes that an item is not in l any more.
func (l *list) leaves(id string) {
	if l.spec.Kind != "" { // otherwise nobody asks for its owner
		l.former.put(id)
	}
}
