package plugins

import (
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// facts holds a fact for each object, by its front id. While there is no plugin it sleeps, and holds nothing. Its owner is
// Plugins; any goroutine may call its methods.
type facts struct {
	mu      sync.Mutex // guards the fields below
	awake   bool
	byKey   map[factKey]*fact
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

func newFacts() *facts {
	return &facts{byKey: map[factKey]*fact{}, gone: map[factKey]bool{}}
}

func (s *facts) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awake = true
}

func (s *facts) sleep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awake = false
	clear(s.byKey)
}

// get returns the fact of an object, or nil if there is none. As in the runtimes, the beginning of
// an id suffices if only one id begins with it.
func (s *facts) get(kind, id string) *fact {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[s.wholeLocked(kind, id)]
}

// wholeLocked returns the key of an object, by its id or the beginning of its id.
func (s *facts) wholeLocked(kind, id string) factKey {
	key := factKey{kind, id}
	if s.byKey[key] != nil || id == "" {
		return key
	}
	found := key
	for k := range s.byKey {
		if k.kind == kind && strings.HasPrefix(k.id, id) {
			if found != key {
				return key // two ids begin with it
			}
			found = k
		}
	}
	return found
}

// put keeps the fact that a successful call has made.
func (s *facts) put(f *fact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awake {
		s.byKey[f.key()] = f
		delete(s.gone, f.key())
	}
}

// lookingUp begins a look-up. The caller must call found once, with the fact that it found or nil.
// found keeps the fact and returns it. If there is a newer fact by then, found returns that one
// instead.
func (s *facts) lookingUp() (found func(*fact) *fact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups++
	return func(f *fact) *fact {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lookups--; s.lookups == 0 {
			defer clear(s.gone)
		}
		if f == nil || !s.awake || s.gone[f.key()] {
			return f
		}
		if known := s.byKey[f.key()]; known != nil {
			return known
		}
		s.byKey[f.key()] = f
		return f
	}
}

// update changes the fact of an object, if there is one, and the fields that the objects in it
// inherit. asked makes the changes of the client's request, and made then makes those of the
// plugins.
func (s *facts) update(kind, id string, asked func(protoreflect.Message) error, made func(protoreflect.Message)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.byKey[s.wholeLocked(kind, id)]
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
	s.replaceLocked(f, body).keepAsked(message)
	for _, inner := range s.byKey {
		if inner.object.parent == f.object && inner.parent == f.id {
			in := inner.message()
			inner.object.inherit(in, body, f.about)
			s.replaceLocked(inner, in)
		}
	}
	return nil
}

func (s *facts) replaceLocked(f *fact, about protoreflect.Message) *fact {
	changed := *f
	changed.about = about
	s.byKey[f.key()] = &changed
	return &changed
}

// remove forgets an object, and all objects in it.
func (s *facts) remove(o *object, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.wholeLocked(o.kind, id)
	s.forgetLocked(key)
	for k, f := range s.byKey {
		if f.object.parent == o && f.parent == key.id {
			s.forgetLocked(k)
		}
	}
}

func (s *facts) forgetLocked(key factKey) {
	delete(s.byKey, key)
	if s.lookups > 0 {
		s.gone[key] = true
	}
}

// withUID returns a fact whose uid occurs in text, either as it is or, as systemd writes it,
// with underscores in place of dashes. It returns nil if there is none.
func (s *facts) withUID(text string) *fact {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.byKey {
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
func (s *facts) ids(kind string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for k := range s.byKey {
		if k.kind == kind {
			all[k.id] = true
		}
	}
	return all
}

// count returns how many objects there are of each kind.
func (s *facts) count() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for k := range s.byKey {
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
