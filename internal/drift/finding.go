package drift

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
)

// The kinds of findings.
const (
	Method = "method" // a method that the schema does not have: its calls pass to the primary unchanged
	Field  = "field"  // a field that the message does not have in the schema: it passes unchanged
	ID     = "id"     // a field that looks like an id but is not translated
)

// A Finding is something that the profile does not know.
type Finding struct {
	Kind    string `json:"kind"`
	Where   string `json:"where"`            // "/runtime.v1.RuntimeService/FreezePod", "ImageSpec field 20", "FreezePodRequest.peer_id"
	Method  string `json:"method,omitempty"` // the method in which it was first seen
	Count   uint64 `json:"count,omitempty"`  // how many of the examined messages had it
	Suggest string `json:"suggest"`          // a line for the configuration that fixes it
}

// idNames are patterns for the names of fields that hold ids.
var idNames = []string{"id", "ids", "*_id", "*_ids", "*_ref", "*_refs"}

func looksLikeID(fd protoreflect.FieldDescriptor) bool {
	return holdsStrings(fd) && slices.ContainsFunc(idNames, func(pattern string) bool {
		ok, _ := path.Match(pattern, string(fd.Name()))
		return ok
	})
}

// holdsStrings reports whether the values of a field are strings. For a map, its values count.
func holdsStrings(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	return fd.Kind() == protoreflect.StringKind
}

// Uncovered lists the fields that look like ids by their name, and that the profile
// neither gives a kind nor calls harmless.
func Uncovered(p *profile.Profile, s *codec.Schema) ([]Finding, error) {
	t, err := compile(Config{Profile: p, Schema: s})
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, fd := range t.fields.Unclassified() {
		twice := slices.ContainsFunc(found, func(f Finding) bool { return f.Where == placeOf(fd) }) // in another package
		if looksLikeID(fd) && !twice {
			found = append(found, Finding{Kind: ID, Where: placeOf(fd), Suggest: t.ruleFor(fd)})
		}
	}
	return found, nil
}

// placeOf returns where a field is, as "Message.field".
func placeOf(fd protoreflect.FieldDescriptor) string {
	return fmt.Sprintf("%s.%s", fd.ContainingMessage().Name(), fd.Name())
}

// ruleFor returns the line of the configuration that gives a field a kind.
func (t *table) ruleFor(fd protoreflect.FieldDescriptor) string {
	message, name := fd.ContainingMessage(), fd.Name()
	return fmt.Sprintf("rules: {fields: {%s.%s: %s}}, or, if it holds nothing of one backend, rules: {harmless: {%s: [%s]}}",
		message.Name(), name, t.guess(fd), message.Name(), name)
}

// guess returns the kind of name that a field probably holds: the kind in the name of the field, else the kind of
// another field of the message.
func (t *table) guess(fd protoreflect.FieldDescriptor) string {
	kinds := slices.SortedFunc(slices.Values(t.kinds), func(a, b string) int { return len(b) - len(a) })
	for _, kind := range kinds {
		if strings.Contains(string(fd.Name()), kind) {
			return kind
		}
	}
	fields := fd.ContainingMessage().Fields()
	for i := range fields.Len() {
		if kind := t.fields.Kind(fields.Get(i)); kind != "" {
			return kind
		}
	}
	if len(kinds) == 1 {
		return kinds[0]
	}
	return "KIND"
}
