package hook

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/rewrite"
)

// projection copies fields of a serialized message into a message of another type. It leaves a
// field as it is if the serialized one is empty.
type projection []fill

// fill is one field of a projection.
type fill struct {
	to   fieldPath
	from *rewrite.Path
	kind fillKind
	sub  projection // fillMessage, fillList
}

type fillKind int

const (
	fillNumber  fillKind = iota
	fillText             // string or bytes
	fillMessage          // field by field, by name
	fillMap              // of strings; from a map, or a list of keys and values
	fillList             // of messages, field by field
)

// compileProjection resolves table, which is "field of to" → "path in from".
func compileProjection(to, from protoreflect.MessageDescriptor, table map[string]string) (projection, error) {
	var p projection
	for _, name := range sortedKeys(table) {
		target, err := parseFieldPath(to, name)
		if err != nil {
			return nil, err
		}
		source, err := rewrite.ParsePath(from, table[name])
		if err != nil {
			return nil, err
		}
		f := fill{to: target, from: source}
		if f.kind, f.sub, err = compileFill(target.leaf(), source.Leaf()); err != nil {
			return nil, fmt.Errorf("%s from %s: %w", name, source, err)
		}
		p = append(p, f)
	}
	return p, nil
}

func compileFill(to, from protoreflect.FieldDescriptor) (fillKind, projection, error) {
	switch {
	case to.IsMap():
		if !isTextMap(to) || to.MapValue().Kind() != protoreflect.StringKind || !isTextMap(from) && !isPairs(from) {
			return 0, nil, fmt.Errorf("want a map of strings, or a list of keys and values")
		}
		return fillMap, nil, nil
	case from.IsMap() || to.IsList() != from.IsList():
		return 0, nil, fmt.Errorf("one is a list or map, the other is not")
	case to.Kind() == protoreflect.MessageKind && from.Kind() == protoreflect.MessageKind:
		same := map[string]string{}
		for i := range to.Message().Fields().Len() {
			name := to.Message().Fields().Get(i).Name()
			if from.Message().Fields().ByName(name) != nil {
				same[string(name)] = string(name)
			}
		}
		sub, err := compileProjection(to.Message(), from.Message(), same)
		if to.IsList() {
			return fillList, sub, err
		}
		return fillMessage, sub, err
	case to.IsList():
		return 0, nil, fmt.Errorf("want a list of messages")
	case to.Kind() == protoreflect.StringKind && isText(from):
		return fillText, nil, nil
	case isVarint(to) && to.Kind() == from.Kind():
		return fillNumber, nil, nil
	default:
		return 0, nil, fmt.Errorf("a %s cannot be taken from a %s", to.Kind(), from.Kind())
	}
}

func isText(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

func isVarint(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return true
	}
	return false
}

func isTextMap(fd protoreflect.FieldDescriptor) bool {
	return fd.IsMap() && fd.MapKey().Kind() == protoreflect.StringKind && isText(fd.MapValue())
}

// isPairs reports whether fd is a list of messages like the entries of a map.
func isPairs(fd protoreflect.FieldDescriptor) bool {
	if !fd.IsList() || fd.Message() == nil {
		return false
	}
	key, value := fd.Message().Fields().ByNumber(1), fd.Message().Fields().ByNumber(2)
	return key != nil && value != nil && key.Name() == "key" && value.Name() == "value" && isText(key) && isText(value)
}

// run copies fields of src into m. left names the fields that it left out because they are not
// UTF-8, which a message cannot hold.
func (p projection) run(m protoreflect.Message, src []byte) (left []string, err error) {
	for _, f := range p {
		more, err := f.run(m, src)
		if err != nil {
			return nil, err
		}
		left = append(left, more...)
	}
	return left, nil
}

func (f *fill) run(m protoreflect.Message, src []byte) (left []string, err error) {
	fd := f.to.leaf()
	switch f.kind {
	case fillNumber:
		v, found, err := f.from.LookupVarint(src)
		if err != nil || !found || v == 0 {
			return nil, err
		}
		f.to.in(m).Set(fd, number(fd, v))
	case fillText:
		v, found, err := f.from.Lookup(src)
		switch {
		case err != nil || !found || len(v) == 0:
			return nil, err
		case !utf8.Valid(v):
			return []string{f.to.String()}, nil
		}
		f.to.in(m).Set(fd, protoreflect.ValueOfString(string(v)))
	case fillMessage:
		whole, found, err := f.pieces(src)
		if err != nil || !found {
			return nil, err
		}
		return f.within(f.sub.run(f.to.in(m).Mutable(fd).Message(), whole))
	case fillMap:
		return f.fillMap(m, src)
	case fillList:
		return f.fillList(m, src)
	}
	return nil, nil
}

// pieces returns the message to which the path leads, joined if it comes in several pieces.
func (f *fill) pieces(src []byte) (whole []byte, found bool, err error) {
	err = f.from.All(src, func(piece []byte) error {
		if !found {
			whole, found = piece, true
			return nil
		}
		whole = append(whole[:len(whole):len(whole)], piece...)
		return nil
	})
	return whole, found, err
}

func (f *fill) fillMap(m protoreflect.Message, src []byte) (left []string, err error) {
	fd := f.to.leaf()
	var entries protoreflect.Map
	err = f.from.Entries(src, func(key, value []byte) error {
		if entries == nil {
			entries = f.to.in(m).Mutable(fd).Map()
		}
		if !utf8.Valid(key) || !utf8.Valid(value) {
			left = append(left, fmt.Sprintf("%s[%q]", f.to, key))
			if utf8.Valid(key) {
				entries.Clear(protoreflect.ValueOfString(string(key)).MapKey())
			}
			return nil
		}
		entries.Set(protoreflect.ValueOfString(string(key)).MapKey(), protoreflect.ValueOfString(string(value)))
		return nil
	})
	return left, err
}

func (f *fill) fillList(m protoreflect.Message, src []byte) (left []string, err error) {
	fd := f.to.leaf()
	var items protoreflect.List
	err = f.from.All(src, func(item []byte) error {
		if items == nil { // the first item: replace the whole list
			in := f.to.in(m)
			in.Clear(fd)
			items = in.Mutable(fd).List()
		}
		more, err := f.within(f.sub.run(items.AppendMutable().Message(), item))
		left = append(left, more...)
		return err
	})
	return left, err
}

// within puts the name of the field before the names of fields that were left out inside it.
func (f *fill) within(left []string, err error) ([]string, error) {
	for i := range left {
		left[i] = f.to.String() + "." + left[i]
	}
	return left, err
}

func number(fd protoreflect.FieldDescriptor, v uint64) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(v))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v))
	default:
		return protoreflect.ValueOfUint64(v)
	}
}
