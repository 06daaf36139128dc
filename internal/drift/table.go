package drift

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/internal/profile"
)

// table has the methods and fields that a profile knows. It is immutable.
type table struct {
	packages []string // of the API, each with a slash before and a dot after it
	schema   *codec.Schema
	kinds    []string
	fields   *profile.Fields
	open     map[protoreflect.FullName]string // fields of text that no rule covers → where they are
	prefixes []string                         // the beginnings of names that have a backend in front
}

func compile(cfg Config) (*table, error) {
	t := &table{schema: cfg.Profile.AllVersions(cfg.Schema), open: map[protoreflect.FullName]string{}}
	for _, v := range cfg.Profile.Versions {
		t.packages = append(t.packages, "/"+v.Package+".")
	}
	for kind, form := range cfg.Profile.Names {
		t.kinds = append(t.kinds, kind)
		if form.Map != "" {
			continue
		}
		for _, name := range cfg.Backends {
			if name != "" {
				t.prefixes = append(t.prefixes, strings.NewReplacer("{backend}", name, "{name}", "").Replace(form.Front))
			}
		}
	}
	var err error
	if t.fields, err = profile.FieldsOf(cfg.Profile, cfg.Schema); err != nil {
		return nil, err
	}
	for _, fd := range t.fields.Unclassified() {
		if holdsStrings(fd) {
			t.open[fd.FullName()] = placeOf(fd)
		}
	}
	return t, nil
}

// ours reports whether a method belongs to the API.
func (t *table) ours(method string) bool {
	return slices.ContainsFunc(t.packages, func(p string) bool { return strings.HasPrefix(method, p) })
}

// maxDepth bounds how deep messages are looked into.
const maxDepth = 20

// scan calls found for each field of a message that the profile does not know. b may be cut short.
func (t *table) scan(md protoreflect.MessageDescriptor, b []byte, depth int, found func(Finding)) {
	if depth >= maxDepth {
		return
	}
	for f, err := range wire.Fields(b) {
		if err != nil {
			return
		}
		var value []byte
		if f.Type == protowire.BytesType {
			value = f.Bytes()
		}
		if fd := md.Fields().ByNumber(f.Number); fd == nil {
			found(t.unknown(md, f.Number, value))
		} else if t.fields.Kind(fd) == "" {
			t.field(fd, value, depth, found)
		}
	}
}

func (t *table) field(fd protoreflect.FieldDescriptor, value []byte, depth int, found func(Finding)) {
	where, open := t.open[fd.FullName()]
	switch {
	case len(value) == 0:
	case open:
		if fd.IsMap() {
			_, value, _ = wire.MapEntry(value)
		}
		if len(value) > 0 && (looksLikeID(fd) || t.prefix(value) != "") {
			found(Finding{Kind: ID, Where: where, Suggest: t.ruleFor(fd)})
		}
	case fd.IsMap():
		if md := fd.MapValue().Message(); md != nil {
			_, value, _ = wire.MapEntry(value)
			t.scan(md, value, depth+1, found)
		}
	case fd.Kind() == protoreflect.MessageKind:
		t.scan(fd.Message(), value, depth+1, found)
	}
}

// prefix returns the backend's prefix that a value begins with, if it does.
func (t *table) prefix(value []byte) string {
	for _, p := range t.prefixes {
		if len(value) > len(p) && string(value[:len(p)]) == p {
			return p
		}
	}
	return ""
}
