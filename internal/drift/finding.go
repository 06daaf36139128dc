package drift

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
)

// The kinds of findings.
const (
	Method = "method" // the schema does not have it: it passes to the primary as it is
	Field  = "field"  // a number that its message does not have: it passes as it is
	ID     = "id"     // looks like an id, and is not translated
)

// A Finding is something that the profile does not know.
type Finding struct {
	Kind    string `json:"kind"`
	Where   string `json:"where"`            // "/runtime.v1.RuntimeService/FreezePod", "ImageSpec field 20", "FreezePodRequest.peer_id"
	Method  string `json:"method,omitempty"` // in which it was seen first
	Count   uint64 `json:"count,omitempty"`  // in how many messages it was seen, of those that were looked at
	Suggest string `json:"suggest"`          // a line for the configuration that would mend it
}

// idNames are what fields are called that hold ids.
var idNames = []string{"id", "ids", "*_id", "*_ids", "*_ref", "*_refs"}

func looksLikeID(fd protoreflect.FieldDescriptor) bool {
	return holdsStrings(fd) && slices.ContainsFunc(idNames, func(pattern string) bool {
		ok, _ := path.Match(pattern, string(fd.Name()))
		return ok
	})
}

// holdsStrings reports whether a field has strings in it. A map has its values.
func holdsStrings(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	return fd.Kind() == protoreflect.StringKind
}

// Uncovered lists the fields that look like ids by their name, and that the profile
// neither gives a kind nor calls harmless.
func Uncovered(p *director.Profile, s *codec.Schema) ([]Finding, error) {
	t, err := compile(Config{Profile: p, Schema: s})
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, where := range t.fields.Unclassified() {
		for _, f := range t.byName[where] {
			if looksLikeID(f) {
				found = append(found, Finding{Kind: ID, Where: where, Suggest: t.ruleFor(f)})
				break
			}
		}
	}
	return found, nil
}

// ruleFor is the line of the configuration that gives a field a kind.
func (t *table) ruleFor(fd protoreflect.FieldDescriptor) string {
	message, name := fd.ContainingMessage(), fd.Name()
	return fmt.Sprintf("rules: {fields: {%s.%s: %s}}, or, if it holds nothing of one backend, rules: {harmless: {%s: [%s]}}",
		message.Name(), name, t.guess(fd), message.Name(), name)
}

// guess returns the kind of name that a field probably holds: the one that the field is
// called after, or the one that another field of the message has.
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
