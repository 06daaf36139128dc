package replay

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/base/wire"
)

// ids maps recorded names to the names that the server gives now.
type ids struct {
	given func(protoreflect.FieldDescriptor) bool
	bare  func(name string) string

	mu      sync.Mutex
	now     map[string]string // :: recorded → now
	there   *strings.Replacer // recorded → now, for long names anywhere in a text
	back    *strings.Replacer // now → recorded
	changed bool
}

func newIDs(cfg Config) *ids {
	return &ids{given: cfg.Given, bare: cfg.Bare, now: map[string]string{}, there: strings.NewReplacer(), back: strings.NewReplacer()}
}

// LooksLikeID reports whether a field is called id, or ends in _id. It is a guess, for APIs without a profile.
func LooksLikeID(fd protoreflect.FieldDescriptor) bool {
	name := string(fd.Name())
	return fd.Kind() == protoreflect.StringKind && (name == "id" || strings.HasSuffix(name, "_id"))
}

const (
	longName  = 12 // least length of names that are replaced within other text
	shortName = 6  // least length of the beginning of a name that stands for the name, as in crictl
)

// learn pairs the names in a recorded reply with those in the reply now. It skips lists: the names in them were given
// by earlier calls.
func (x *ids) learn(recorded, now []*dump.Node) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pair(recorded, now)
	if !x.changed {
		return
	}
	x.changed = false
	olds := slices.SortedFunc(maps.Keys(x.now), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var there, back []string
	for _, old := range olds {
		if len(old) >= longName {
			there = append(there, old, x.now[old])
		}
		back = append(back, x.now[old], old)
	}
	x.there, x.back = strings.NewReplacer(there...), strings.NewReplacer(back...)
}

func (x *ids) pair(recorded, now []*dump.Node) {
	for _, a := range recorded {
		i := slices.IndexFunc(now, func(b *dump.Node) bool { return a.Name == b.Name && a.Key == b.Key && a.Field == b.Field })
		if i < 0 || a.List || a.Field == nil {
			continue
		}
		b := now[i]
		if a.IsMsg && b.IsMsg {
			x.pair(a.Nodes, b.Nodes)
			continue
		}
		if !a.IsMsg && !b.IsMsg && len(a.Value) > 0 && len(b.Value) > 0 && x.given(a.Field) {
			x.add(string(a.Value), string(b.Value))
		}
	}
}

func (x *ids) add(old, now string) {
	if _, known := x.now[old]; known {
		return
	}
	x.now[old], x.changed = now, true
	bareOld, bareNow := x.bare(old), x.bare(now) // text from a runtime has names without a prefix
	if len(bareOld) >= longName && len(bareNow) >= longName {
		x.add(bareOld, bareNow)
	}
}

// recorded returns text with new names replaced by the recorded ones.
func (x *ids) recorded(text string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.back.Replace(text)
}

// request returns a recorded request with recorded names replaced by the new ones.
func (x *ids) request(md protoreflect.MessageDescriptor, src []byte) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.apply(md, src)
}

func (x *ids) apply(md protoreflect.MessageDescriptor, src []byte) []byte {
	if md == nil || len(x.now) == 0 {
		return src
	}
	out := make([]byte, 0, len(src)+64)
	for f := range wire.Fields(src) { // a malformed end is copied unchanged
		fd := md.Fields().ByNumber(f.Number)
		if f.Type != protowire.BytesType || fd == nil {
			out = append(out, f.Raw...)
			continue
		}
		value := f.Bytes()
		switch {
		case fd.Message() != nil:
			value = x.apply(fd.Message(), value)
		case fd.Kind() == protoreflect.StringKind:
			value = []byte(x.translate(string(value), x.given(fd)))
		}
		out = protowire.AppendBytes(append(out, f.Tag()...), value)
	}
	return out
}

func (x *ids) translate(value string, isName bool) string {
	if now, ok := x.now[value]; ok {
		return now
	}
	if isName && len(value) >= shortName {
		found := ""
		for old, now := range x.now {
			if strings.HasPrefix(old, value) && found != now {
				if found != "" {
					return value // the short name fits several names
				}
				found = now
			}
		}
		if found != "" {
			return found[:min(len(found), len(value))]
		}
	}
	return x.there.Replace(value)
}
