package inventory

import (
	"bytes"
	"maps"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// matcher returns a function that decides whether an item is in the answer to request: it must pass the test of each filter that
// the request has. A filter may test the item with the same id in another list, of which itemsOf returns the items.
func (l *ListPlan) matcher(request []byte, itemsOf func(*ListPlan) *items) (func(id string, item []byte) bool, error) {
	var all []func(id string, item []byte) bool
	for _, f := range l.filters {
		test, err := f.test(request)
		if err != nil {
			return nil, err
		}
		if test == nil {
			continue
		}
		if f.of != nil {
			own, of := test, itemsOf(f.of)
			test = func(id string, _ []byte) bool {
				other, ok := of.get(id)
				return ok && own(id, other)
			}
		}
		all = append(all, test)
	}
	return func(id string, item []byte) bool {
		for _, test := range all {
			if !test(id, item) {
				return false
			}
		}
		return true
	}, nil
}

// Unfiltered reports whether request asks for all items.
func (l *ListPlan) Unfiltered(request []byte) bool {
	for _, f := range l.filters {
		if test, err := f.test(request); err != nil || test != nil {
			return false
		}
	}
	// A field that the Spec does not name may be a filter, too, which the backend knows. So there must be none.
	return isEmpty(l.Method().Input, request)
}

// isEmpty reports whether a message holds nothing but empty strings and messages that are empty in the same sense.
func isEmpty(md protoreflect.MessageDescriptor, b []byte) bool {
	for f, err := range wire.Fields(b) {
		if err != nil || f.Type != protowire.BytesType {
			return false
		}
		if fd := md.Fields().ByNumber(f.Number); len(f.Bytes()) > 0 && (fd == nil || fd.Message() == nil || !isEmpty(fd.Message(), f.Bytes())) {
			return false
		}
	}
	return true
}

// test returns the test that f makes of a request, nil if the request does not ask for it. An item passes if
//
//   - its string begins with that of the request (prefix): ids may be cut short;
//   - its number is that of the request (equal), even if that is zero;
//   - its map has all entries of that of the request (within).
//
// A malformed item passes no test.
func (f *filter) test(request []byte) (func(id string, item []byte) bool, error) {
	switch f.match {
	case "prefix":
		want, _, err := f.request.Lookup(request)
		if err != nil || len(want) == 0 {
			return nil, err
		}
		return func(_ string, item []byte) bool {
			got, _, err := f.item.Lookup(item)
			return err == nil && bytes.HasPrefix(got, want)
		}, nil
	case "equal":
		want, asked, err := f.request.LookupVarint(request)
		if err != nil || !asked {
			return nil, err
		}
		return func(_ string, item []byte) bool {
			got, _, err := f.item.LookupVarint(item)
			return err == nil && got == want
		}, nil
	default: // within
		want := map[string]string{}
		err := f.request.Entries(request, func(k, v []byte) error {
			want[string(k)] = string(v)
			return nil
		})
		if err != nil || len(want) == 0 {
			return nil, err
		}
		return func(_ string, item []byte) bool {
			missing := maps.Clone(want)
			err := f.item.Entries(item, func(k, v []byte) error {
				if w, ok := want[string(k)]; ok && w == string(v) {
					delete(missing, string(k))
				}
				return nil
			})
			return err == nil && len(missing) == 0
		}, nil
	}
}
