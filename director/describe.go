package director

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A Fate is what becomes of the calls of one method, for people.
type Fate struct {
	Method  string       // "/runtime.v1.RuntimeService/StopContainer"
	Stream  bool         // whether more than one message goes in a direction
	Goes    string       // where a call goes: "to the owner of container_id"
	Request []Translated // what is translated on its way to a backend
	Reply   []Translated // and on its way back
}

// Translated is a field whose content differs between front and back.
type Translated struct {
	Path string // "containers[].image.image"
	Kind string // "image"
}

// Fates lists what becomes of each method that the profile describes, in the
// order of the schema.
func (d *Director) Fates() []Fate {
	var fates []Fate
	t := d.table.Load()
	for _, m := range t.ordered {
		fates = append(fates, Fate{
			Method:  m.Name,
			Stream:  !m.Unary(),
			Goes:    t.goes(m),
			Request: t.translated(m.request),
			Reply:   t.translated(m.reply),
		})
	}
	return fates
}

// Assumptions are what a profile that was written for another version of the API should
// have said, and what is assumed in its place, each with the rule that says otherwise.
func (d *Director) Assumptions() []string { return slices.Clone(d.table.Load().assumptions) }

func (t *table) goes(m *method) string {
	var ways []string
	var owners []string
	for _, p := range m.request.Paths() {
		if n := t.classes[p.Class].naming; n != nil && n.decides {
			owners = append(owners, p.Path)
		}
	}
	if len(owners) > 0 {
		ways = append(ways, "to the owner of "+strings.Join(owners, ", "))
	}
	for _, c := range m.choosers {
		ways = append(ways, fmt.Sprintf("by %s %s", c.kind, c.where))
	}
	last := "to the primary"
	if m.isNew && t.newTo > 0 {
		last = "to " + t.backends[t.newTo].String()
		if m.unlessNew != nil {
			last += ", or with " + m.unlessNew.String() + " to the primary"
		}
	}
	if m.first != nil {
		last = "to one after another until the reply has " + m.first.String()
	}
	if m.all {
		last = "to all"
		if m.pages != nil {
			last = "page by page to all"
		}
		if m.skipMissing {
			last = "to all that have it"
		}
	}
	return strings.Join(append(ways, last), ", else ")
}

func (t *table) translated(p *rewrite.Plan) []Translated {
	var fields []Translated
	for _, path := range p.Paths() {
		fields = append(fields, Translated{path.Path, t.classes[path.Class].name})
	}
	return fields
}

// Fields are what a profile says of the fields of an API. They are immutable.
type Fields struct {
	kinds   []string // :: class → kind
	all     *rewrite.Messages
	classes *rewrite.Classes
}

// FieldsOf returns what p says of the fields of s. Its error is a mistake of the profile.
func FieldsOf(p *Profile, s *codec.Schema) (*Fields, error) {
	f := &Fields{kinds: []string{""}, all: messages(described(p, s))}
	byName := map[string]rewrite.Class{}
	for _, field := range sortedKeys(p.Fields) {
		if kind := p.Fields[field]; byName[kind] == 0 {
			byName[kind] = rewrite.Class(len(f.kinds))
			f.kinds = append(f.kinds, kind)
		}
	}
	var err error
	if f.classes, err = classify(p, f.all, byName); err != nil {
		return nil, err
	}
	return f, nil
}

// Kind returns the kind of names that stand in a field, or its class of edits; of all
// other fields it is empty.
func (f *Fields) Kind(fd protoreflect.FieldDescriptor) string { return f.kinds[f.classes.Of(fd)] }

// Unclassified lists the string and bytes fields that the profile neither gives a kind
// nor calls harmless, as "Message.field", each once. An id among them would leak from
// one backend to another.
func (f *Fields) Unclassified() []string {
	var found []string
	for _, md := range f.all.All() {
		if md.IsMapEntry() {
			continue // a map is the field that holds it
		}
		for i := range md.Fields().Len() {
			if fd := md.Fields().Get(i); holdsText(fd) && !f.classes.Named(fd) {
				found = append(found, fmt.Sprintf("%s.%s", md.Name(), fd.Name()))
			}
		}
	}
	return found
}

func holdsText(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		return holdsText(fd.MapKey()) || holdsText(fd.MapValue())
	}
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

// Secrets returns the fields whose content a profile wants hidden.
func Secrets(p *Profile, s *codec.Schema) (codec.Secrets, error) {
	rules, keyed := map[string]string{}, map[string]string{}
	keys := map[string][]string{} // :: "Message.map" → keys
	for _, secret := range p.Secret {
		field, key, err := secretKey(secret)
		switch {
		case err != nil:
			return codec.Secrets{}, fmt.Errorf("secret: %s: %w", secret, err)
		case key == "":
			rules[field] = ""
		default:
			keyed[field] = ""
			keys[field] = append(keys[field], key)
		}
	}
	all := messages(described(p, s)).All()
	whole := map[protoreflect.FullName]bool{}
	for _, field := range sortedKeys(rules) {
		found := false
		for _, md := range all {
			dot := strings.LastIndexByte(field, '.')
			if dot < 0 {
				break
			}
			message, name := field[:dot], field[dot+1:]
			fd := md.Fields().ByName(protoreflect.Name(name))
			if fd != nil && !md.IsMapEntry() && (message == "*" && holdsText(fd) || message == string(md.Name()) || message == string(md.FullName())) {
				whole[fd.FullName()] = true
				found = true
			}
		}
		if !found {
			return codec.Secrets{}, fmt.Errorf("secret: %s: there is no such field", field)
		}
	}
	byField := map[protoreflect.FullName][]string{}
	for _, field := range sortedKeys(keyed) {
		found := false
		message, name, _ := strings.Cut(field, ".")
		for _, md := range all {
			fd := md.Fields().ByName(protoreflect.Name(name))
			if fd == nil || !fd.IsMap() || fd.MapKey().Kind() != protoreflect.StringKind || message != "*" && message != string(md.Name()) {
				continue
			}
			found = true
			byField[fd.FullName()] = append(byField[fd.FullName()], keys[field]...)
		}
		if !found {
			return codec.Secrets{}, fmt.Errorf("secret: %s: there is no map of that name with strings for keys", field)
		}
	}
	return codec.Secrets{
		Field: func(fd protoreflect.FieldDescriptor) bool { return whole[fd.FullName()] },
		Keys:  func(fd protoreflect.FieldDescriptor) []string { return byField[fd.FullName()] },
	}, nil
}

// secretKey takes apart an entry under secret: "Message.field", or
// "Message.map[\"key\"]".
func secretKey(s string) (field, key string, err error) {
	field, quoted, ok := strings.Cut(s, "[")
	if !ok {
		return s, "", nil
	}
	key, err = strconv.Unquote(strings.TrimSuffix(quoted, "]"))
	if err != nil || key == "" || !strings.HasSuffix(quoted, "]") {
		return "", "", errors.New(`want "Message.map[\"key\"]"`)
	}
	return field, key, nil
}

// AllVersions returns a schema that knows the methods of p in all its versions, for
// printing: older ones have the messages of the newest.
func (p *Profile) AllVersions(s *codec.Schema) *codec.Schema {
	for _, v := range p.Versions[1:] {
		s = s.Alias(p.Versions[0].Package, v.Package)
	}
	return s
}
