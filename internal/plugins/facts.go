package plugins

import (
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// memory holds a fact for each object, by its front id. While there is no plugin the memory sleeps, and holds nothing.
type memory struct {
	mu      sync.Mutex // guards the fields below
	awake   bool
	facts   map[factKey]*fact
	lookups int              // under way
	gone    map[factKey]bool // removed while lookups are under way, which may still find them
}

type factKey struct{ kind, id string }

// fact describes one object. It is immutable: whoever wants to change its message takes a copy.
type fact struct {
	object     *object
	id, parent string               // parent is the id of the object that it is in
	about      protoreflect.Message // describes the object to plugins

	// asked has only the field Asked of the object, as clients asked for it. It is nil if no plugin has changed the field.
	asked protoreflect.Message
}

// newFact returns the fact of an object that has got its id. about belongs to the fact from now on, and gets the id that the
// object has at its runtime.
func (p *Plugins) newFact(o *object, id, parent string, about protoreflect.Message) *fact {
	if o.id != nil {
		own := id
		if p.cfg.OwnID != nil {
			own = p.cfg.OwnID(id)
		}
		o.id.in(about).Set(o.id.leaf(), protoreflect.ValueOfString(own))
	}
	return &fact{object: o, id: id, parent: parent, about: about}
}

func (f *fact) key() factKey { return factKey{f.object.kind, f.id} }

// message returns a copy of the object's message.
func (f *fact) message() protoreflect.Message { return cloneOf(f.about) }

// askedMessage is message with the field Asked as clients asked for it.
func (f *fact) askedMessage() protoreflect.Message {
	m := f.message()
	if f.asked != nil {
		take(m, f.object.asked, cloneOf(f.asked), f.object.asked)
	}
	return m
}

// keepAsked notes that clients asked for the field Asked as it is in m.
func (f *fact) keepAsked(m protoreflect.Message) {
	f.asked = f.object.typ.New()
	take(f.asked, f.object.asked, cloneOf(m), f.object.asked)
}

func newMemory() *memory {
	return &memory{facts: map[factKey]*fact{}, gone: map[factKey]bool{}}
}

func (m *memory) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.awake = true
}

func (m *memory) sleep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.awake = false
	clear(m.facts)
}

// get returns the fact of an object, or nil if there is none. As in the runtimes, the beginning of
// an id suffices if only one id begins with it.
func (m *memory) get(kind, id string) *fact {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts[m.wholeLocked(kind, id)]
}

// wholeLocked returns the key of an object, by its id or the beginning of its id.
func (m *memory) wholeLocked(kind, id string) factKey {
	key := factKey{kind, id}
	if m.facts[key] != nil || id == "" {
		return key
	}
	found := key
	for k := range m.facts {
		if k.kind == kind && strings.HasPrefix(k.id, id) {
			if found != key {
				return key // two ids begin with it
			}
			found = k
		}
	}
	return found
}

// put remembers the fact that a successful call has made.
func (m *memory) put(f *fact) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.awake {
		m.facts[f.key()] = f
		delete(m.gone, f.key())
	}
}

// lookingUp begins a look-up. The caller must call found once, with the fact that it found or nil.
// found remembers the fact and returns it. If memory has got a newer fact since, found returns that
// one instead.
func (m *memory) lookingUp() (found func(*fact) *fact) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookups++
	return func(f *fact) *fact {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lookups--; m.lookups == 0 {
			defer clear(m.gone)
		}
		if f == nil || !m.awake || m.gone[f.key()] {
			return f
		}
		if known := m.facts[f.key()]; known != nil {
			return known
		}
		m.facts[f.key()] = f
		return f
	}
}

// update changes the fact of an object, if there is one, and the fields that the objects in it
// inherit. asked makes the changes of the client's request, and made then makes those of the
// plugins.
func (m *memory) update(kind, id string, asked func(protoreflect.Message) error, made func(protoreflect.Message)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.facts[m.wholeLocked(kind, id)]
	if f == nil {
		return nil
	}
	body, message := f.message(), f.askedMessage()
	for _, one := range []protoreflect.Message{body, message} {
		if err := asked(one); err != nil {
			return err
		}
	}
	made(body)
	m.replaceLocked(f, body).keepAsked(message)
	for _, inner := range m.facts {
		if inner.object.parent == f.object && inner.parent == f.id {
			in := inner.message()
			inner.object.inherit(in, body, f.about)
			m.replaceLocked(inner, in)
		}
	}
	return nil
}

func (m *memory) replaceLocked(f *fact, about protoreflect.Message) *fact {
	changed := *f
	changed.about = about
	m.facts[f.key()] = &changed
	return &changed
}

// remove forgets an object, and all objects in it.
func (m *memory) remove(o *object, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := m.wholeLocked(o.kind, id)
	m.forgetLocked(key)
	for k, f := range m.facts {
		if f.object.parent == o && f.parent == key.id {
			m.forgetLocked(k)
		}
	}
}

func (m *memory) forgetLocked(key factKey) {
	delete(m.facts, key)
	if m.lookups > 0 {
		m.gone[key] = true
	}
}

// withUID returns a fact whose uid occurs in text, either as it is or, as systemd writes it,
// with underscores in place of dashes. It returns nil if there is none.
func (m *memory) withUID(text string) *fact {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.facts {
		uid := f.object.uid.text(f.about)
		if len(uid) >= minUID && (strings.Contains(text, uid) || strings.Contains(text, strings.ReplaceAll(uid, "-", "_"))) {
			return f
		}
	}
	return nil
}

// minUID is the length from which on a uid does not occur in other text by chance.
const minUID = 8

// ids returns the ids of a kind.
func (m *memory) ids(kind string) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]bool{}
	for k := range m.facts {
		if k.kind == kind {
			all[k.id] = true
		}
	}
	return all
}

// count returns how many objects there are of each kind.
func (m *memory) count() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := map[string]int{}
	for k := range m.facts {
		n[k.kind]++
	}
	return n
}

// inherit sets the fields of m that an object inherits from its parent. If was is not nil, it sets
// only those in which parent differs from was.
func (o *object) inherit(m, parent, was protoreflect.Message) {
	parent = cloneOf(parent)
	for _, f := range o.inherits {
		if was == nil || !was.Get(f[1]).Equal(parent.Get(f[1])) {
			take(m, f[0], parent, f[1])
		}
	}
}

// take sets a field of m to that of another message, which must not be used any more.
func take(m protoreflect.Message, to protoreflect.FieldDescriptor, other protoreflect.Message, from protoreflect.FieldDescriptor) {
	if m.Clear(to); other.Has(from) {
		m.Set(to, other.Get(from))
	}
}
