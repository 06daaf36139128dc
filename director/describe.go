package director

import (
	"fmt"
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

// Unclassified lists the string and bytes fields of an API that its profile
// neither gives a kind nor calls harmless, as "Message.field", each once. An id
// among them would leak from one backend to another.
func Unclassified(p *Profile, s *codec.Schema) ([]string, error) {
	methods := described(p, s)
	byName := map[string]rewrite.Class{}
	for _, class := range p.Fields {
		byName[class] = 1
	}
	known, err := classify(p, methods, byName)
	if err != nil {
		return nil, err
	}
	harmless, err := classify(&Profile{Fields: p.harmless()}, methods, map[string]rewrite.Class{"": 1})
	if err != nil {
		return nil, fmt.Errorf("harmless: %w", err)
	}
	var found []string
	for _, md := range rewrite.Reachable(roots(methods)) {
		if md.IsMapEntry() {
			continue // a map is the field that holds it
		}
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if holdsText(fd) && known.Of(fd) == 0 && harmless.Of(fd) == 0 {
				found = append(found, fmt.Sprintf("%s.%s", md.Name(), fd.Name()))
			}
		}
	}
	return found, nil
}

// harmless returns the harmless fields in the form of rules.
func (p *Profile) harmless() map[string]string {
	rules := map[string]string{}
	for message, fields := range p.Harmless {
		for _, field := range fields {
			rules[message+"."+field] = ""
		}
	}
	return rules
}

func holdsText(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		return holdsText(fd.MapKey()) || holdsText(fd.MapValue())
	}
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

// Secrets returns a function that reports the fields whose content a profile
// wants hidden, for [codec.Text].
func Secrets(p *Profile, s *codec.Schema) (func(protoreflect.FieldDescriptor) bool, error) {
	rules := map[string]string{}
	for _, field := range p.Secret {
		rules[field] = ""
	}
	classes, err := classify(&Profile{Fields: rules}, described(p, s), map[string]rewrite.Class{"": 1})
	if err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	return func(fd protoreflect.FieldDescriptor) bool { return classes.Of(fd) != 0 }, nil
}
