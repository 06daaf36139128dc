// Package strict reads YAML into Go structs and accepts nothing it does not
// understand. All mistakes are reported at once, each with its line, its path
// and, for a misspelt key, what was probably meant:
//
//	line 4: backends[1].adress: unknown key (did you mean "address"?)
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/suggest"
)

// Unmarshal reads the one YAML document in data into v, a pointer to a struct
// whose fields have yaml tags. v is unchanged if there is an error. An empty
// document leaves v as it is.
func Unmarshal(data []byte, v any) error {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("line %d: a second document begins here, want one", more.Line)
	}
	var errs []error
	check(&errs, doc.Content[0], reflect.TypeOf(v).Elem(), "")
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return doc.Decode(v)
}

// Lines returns where the keys and items of a YAML document stand: path, as in the
// errors of Unmarshal, → line. It is empty if data is no YAML.
func Lines(data []byte) map[string]int {
	lines := map[string]int{}
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) == nil && len(doc.Content) > 0 {
		locate(lines, doc.Content[0], "")
	}
	return lines
}

func locate(lines map[string]int, n *yaml.Node, path string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := strings.TrimPrefix(path+"."+n.Content[i].Value, ".")
			lines[at] = n.Content[i].Line
			locate(lines, n.Content[i+1], at)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			lines[at] = item.Line
			locate(lines, item, at)
		}
	}
}

var unmarshaler = reflect.TypeFor[yaml.Unmarshaler]()

func check(errs *[]error, n *yaml.Node, t reflect.Type, path string) {
	fail := func(at *yaml.Node, path, format string, args ...any) {
		if path != "" {
			path += ": "
		}
		*errs = append(*errs, fmt.Errorf("line %d: %s%s", at.Line, path, fmt.Sprintf(format, args...)))
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer && !t.Implements(unmarshaler) {
		t = t.Elem()
	}
	if n.Tag == "!!null" {
		return // the zero value
	}
	if reflect.PointerTo(t).Implements(unmarshaler) || t.Implements(unmarshaler) {
		if err := n.Decode(reflect.New(t).Interface()); err != nil {
			fail(n, path, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode {
			fail(n, path, "is %s, want keys and values", describe(n))
			return
		}
		fields := fieldsOf(t)
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			if line, twice := seen[key.Value]; twice {
				fail(key, at, "is already set in line %d", line)
				continue
			}
			seen[key.Value] = key.Line
			if t.Kind() == reflect.Map {
				check(errs, value, t.Elem(), at)
			} else if ft, ok := fields[key.Value]; ok {
				check(errs, value, ft, at)
			} else {
				names := make([]string, 0, len(fields))
				for name := range fields {
					names = append(names, name)
				}
				fail(key, at, "unknown key%s", suggest.Nearest(key.Value, names))
			}
		}
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			fail(n, path, "is %s, want a list", describe(n))
			return
		}
		for i, item := range n.Content {
			check(errs, item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		if n.Kind != yaml.ScalarNode || n.Decode(reflect.New(t).Interface()) != nil {
			fail(n, path, "is %s, want a %s", describe(n), nameOf(t))
		}
	}
}

// fieldsOf returns the types of the keys a struct takes, embedded structs with
// the inline tag included.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	if t.Kind() != reflect.Struct {
		return fields
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case strings.Contains(options, "inline"):
			for k, v := range fieldsOf(f.Type) {
				fields[k] = v
			}
		case name != "-" && name != "" && f.IsExported():
			fields[name] = f.Type
		}
	}
	return fields
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", n.Value)
	}
}

func nameOf(t reflect.Type) string {
	switch {
	case t.String() == "time.Duration":
		return "duration such as 500ms or 2s"
	case t.Kind() == reflect.Bool:
		return "bool: true or false"
	case strings.HasPrefix(t.Kind().String(), "int"), strings.HasPrefix(t.Kind().String(), "uint"):
		return "whole number"
	default:
		return t.Kind().String()
	}
}
