// Package strict reads YAML into Go structs and rejects keys and values that do not fit. It reports
// all mistakes at once, each with its line and column, its path and, for a misspelt key, the key that
// was probably meant:
//
//	4:3: backends[1].adress: unknown key (did you mean "address"?)
package strict

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// Unmarshal reads the only YAML document in data into v, a pointer to a struct whose fields have yaml
// tags. If there is an error, or the document is empty, v stays unchanged.
func Unmarshal(data []byte, v any) error {
	doc, err := parse(data, v)
	if doc == nil || err != nil {
		return err
	}
	return doc.Decode(v)
}

// UnmarshalRest is Unmarshal for a caller that checks for further mistakes: if there are mistakes, v
// gets the rest of the document.
func UnmarshalRest(data []byte, v any) error {
	doc, err := parse(data, v)
	if doc == nil {
		return err
	}
	return errors.Join(err, doc.Decode(v))
}

// parse returns the document without its mistakes, and the mistakes. The document is nil if there is
// none, or if it is wrong as a whole.
func parse(data []byte, v any) (*yaml.Node, error) {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(data, err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%d:%d: a second document begins here; want only one", more.Line, more.Column)
	}
	var errs []error
	if !check(&errs, doc.Content[0], reflect.TypeOf(v).Elem(), "") {
		return nil, errors.Join(errs...)
	}
	return &doc, errors.Join(errs...)
}

// syntaxLine matches the YAML library's errors. It names no line for the first one.
var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// tabbed matches a line that is indented with a tab, up to the tab.
var tabbed = regexp.MustCompile(`^[ -]*\t`)

// syntaxError returns an error of the YAML library with its place. A tab in the indentation looks like spaces on a
// screen, and the library has several texts for it, some with the line before.
func syntaxError(data []byte, err error) error {
	parts := syntaxLine.FindStringSubmatch(err.Error())
	if parts == nil {
		return err
	}
	at, _ := strconv.Atoi(cmp.Or(parts[1], "1")) // it matches digits
	lines := strings.Split(string(data), "\n")
	for i := at - 1; i <= at && i < len(lines) && strings.Contains(parts[2], "found "); i++ {
		if tab := tabbed.FindString(lines[i]); tab != "" {
			return fmt.Errorf("%d:%d: the line is indented with a tab; YAML wants spaces", i+1, len(tab))
		}
	}
	return fmt.Errorf("%d: %s", at, parts[2])
}

// placed matches the place with which a mistake begins: LINE, LINE:COLUMN or FILE:LINE:COLUMN.
var placed = regexp.MustCompile(`^(?:(\S*?[^\s\d:]\S*?):)?(\d+):(?:(\d+):)? `)

// InOrder returns the mistakes in err, one a line, in the order of the lines of each file, and then those without a place.
func InOrder(err error) error {
	if err == nil {
		return nil
	}
	type mistake struct {
		file         int // its place among the files; after them if the mistake has no place
		line, column int
		text         string
	}
	var all []mistake
	files := map[string]int{}
	for text := range strings.SplitSeq(err.Error(), "\n") {
		m := mistake{file: math.MaxInt, text: text}
		if at := placed.FindStringSubmatch(text); at != nil {
			if _, known := files[at[1]]; !known {
				files[at[1]] = len(files)
			}
			m.file = files[at[1]]
			m.line, _ = strconv.Atoi(at[2])   // it matches digits
			m.column, _ = strconv.Atoi(at[3]) // likewise; the YAML library names no columns
		}
		all = append(all, m)
	}
	slices.SortStableFunc(all, func(a, b mistake) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	var sorted []error
	for _, m := range all {
		sorted = append(sorted, errors.New(m.text))
	}
	return errors.Join(sorted...)
}

// Places says where the keys and items of a document are. It maps paths, as in the errors of
// Unmarshal, to LINE:COLUMN or, after [Places.In], to FILE:LINE:COLUMN.
type Places map[string]string

// PlacesIn returns the places of a YAML document. They are empty if data is not YAML.
func PlacesIn(data []byte) Places {
	places := Places{}
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) == nil && len(doc.Content) > 0 {
		places.locate(doc.Content[0], "")
	}
	return places
}

func (p Places) locate(n *yaml.Node, path string) {
	set := func(n *yaml.Node, at string) { p[at] = fmt.Sprintf("%d:%d", n.Line, n.Column) }
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := strings.TrimPrefix(path+"."+n.Content[i].Value, ".")
			if p[at] != "" {
				continue // the first value of a key that is given twice is the one that is read
			}
			set(n.Content[i], at)
			p.locate(n.Content[i+1], at)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			set(item, at)
			p.locate(item, at)
		}
	}
}

// In returns the places with the name of their file.
func (p Places) In(file string) Places {
	all := Places{}
	for path, at := range p {
		all[path] = file + ":" + at
	}
	return all
}

// Below returns the places below a key, with paths relative to it.
func (p Places) Below(key string) Places {
	all := Places{}
	for path, at := range p {
		if rest, ok := strings.CutPrefix(path, key+"."); ok {
			all[rest] = at
		}
	}
	return all
}

// Find returns the longest path with which an error begins, and the place of that path. Both are
// empty if there is none.
func (p Places) Find(text string) (path, place string) {
	for one, at := range p {
		rest, ok := strings.CutPrefix(text, one)
		if ok && len(one) > len(path) && (rest == "" || strings.ContainsAny(rest[:1], ":.[")) {
			path, place = one, at
		}
	}
	return path, place
}

// Locate prefixes each error in err that begins with a path with the place of that path.
func (p Places) Locate(err error) error {
	if err == nil || len(p) == 0 {
		return err
	}
	var all []error
	for text := range strings.SplitSeq(err.Error(), "\n") {
		if _, place := p.Find(text); place != "" {
			text = place + ": " + text
		}
		all = append(all, errors.New(text))
	}
	return errors.Join(all...)
}

var unmarshaler = reflect.TypeFor[yaml.Unmarshaler]()

// check appends the mistakes in n to errs, and removes the wrong parts from n. It reports whether the
// rest of n can be read.
func check(errs *[]error, n *yaml.Node, t reflect.Type, path string) bool {
	fail := func(at *yaml.Node, path, format string, args ...any) bool {
		if path != "" {
			path += ": "
		}
		*errs = append(*errs, fmt.Errorf("%d:%d: %s%s", at.Line, at.Column, path, fmt.Sprintf(format, args...)))
		return false
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer && !t.Implements(unmarshaler) {
		t = t.Elem()
	}
	if n.Tag == "!!null" {
		return true // the zero value
	}
	if reflect.PointerTo(t).Implements(unmarshaler) || t.Implements(unmarshaler) {
		if err := n.Decode(reflect.New(t).Interface()); err != nil {
			return fail(n, path, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		return true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode {
			return fail(n, path, "%s", wants("keys and values", n))
		}
		fields := fieldsOf(t)
		seen := map[string]int{}
		var right []*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			if line, twice := seen[key.Value]; twice {
				fail(key, at, "is already set in line %d", line)
				continue
			}
			seen[key.Value] = key.Line
			ok := false
			if t.Kind() == reflect.Map {
				ok = check(errs, value, t.Elem(), at)
			} else if ft, known := fields[key.Value]; known {
				ok = check(errs, value, ft, at)
			} else {
				fail(key, at, "unknown key%s", suggest.Nearest(key.Value, slices.Collect(maps.Keys(fields))))
			}
			if ok {
				right = append(right, key, value)
			}
		}
		n.Content = right
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return fail(n, path, "%s", wants("a list", n))
		}
		for i, item := range n.Content {
			if !check(errs, item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)) {
				n.Content[i] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: item.Line, Column: item.Column} // so that the other items keep their indexes
			}
		}
	default:
		if n.Kind != yaml.ScalarNode || n.Decode(reflect.New(t).Interface()) != nil {
			return fail(n, path, "%s", wants("a "+nameOf(t), n))
		}
	}
	return true
}

// fieldsOf returns the keys of a struct and their types, including those of structs with the inline
// tag.
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

// wants says what has to stand in place of n.
func wants(what string, n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "want " + what + ", not keys and values"
	case yaml.SequenceNode:
		return "want " + what + ", not a list"
	default:
		return fmt.Sprintf("%q: want %s", n.Value, what)
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
