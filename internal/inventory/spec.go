package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A Spec says which answers of an API to cache. It names methods without their service.
type Spec struct {
	Lists   []List  `yaml:"lists"`
	Replies []Reply `yaml:"replies"`

	// Stamps are the fields, as "Message.field" with stars for any text, that differ in each answer, such as the time of
	// the answer itself. An answer that differs from the one before only in these is no reason to write the file.
	Stamps []string `yaml:"stamps"`
}

// A Reply is a unary method whose latest reply to an empty request is kept whole.
type Reply struct {
	Method string        `yaml:"method"`
	Every  time.Duration `yaml:"every"` // as in List
	Live   bool          `yaml:"live"`  // the primary must give it itself, however long that takes, such as whether it is ready
}

// A List describes the list of one kind of items, and the other methods about these items.
type List struct {
	// List is the method that returns the whole list in one message, Stream the one that returns it in several. One of the
	// two is optional. If a backend has only one of them, a call of the other one uses that.
	List   string `yaml:"list"`
	Stream string `yaml:"stream"`

	ID      string   `yaml:"id"`      // path of an item's id
	Kind    string   `yaml:"kind"`    // kind of name of the ids; empty: the list does not show which backend owns a name
	Names   []string `yaml:"names"`   // paths to other names of the item: strings, or lists of strings
	Filters []Filter `yaml:"filters"` // that a request can have
	Status  Status   `yaml:"status"`  // the call for the status of one item

	// Gate marks the lists that a backend must have answered before it counts as up again. Optional marks a list that may
	// lack the items of a backend if the cache has none, such as a list of measurements.
	Gate     bool `yaml:"gate"`
	Optional bool `yaml:"optional"`

	// Every is how old the list may be before Run asks for it, if no client does. Zero: Run never asks for it, and it is kept
	// when a client asks.
	Every time.Duration `yaml:"every"`

	// Changed are the methods, or patterns of them, that may change the list: Run asks for it at once after such a call.
	// Created are methods whose reply holds the id of a new item: method → path. Removed are methods, or patterns of them,
	// that remove the items that their request names if they succeed.
	Changed []string          `yaml:"changed"`
	Created map[string]string `yaml:"created"`
	Removed []string          `yaml:"removed"`

	// State is the path of the state of an item, an enum. Becomes says what a method of Changed makes of it when it has
	// succeeded: method → state before → state after. Lists show nothing else of that method. The cache shows such a change
	// before the backend does; after others, lists wait for the backend's next answer. Optional.
	State   string                       `yaml:"state"`
	Becomes map[string]map[string]string `yaml:"becomes"`

	PartOf PartOf `yaml:"partOf"` // the items are parts of those of another list, whose statuses include them

	// Draft describes an item that a method of Created has just created, until the backend lists it: path in the item → path
	// in the request. Born is the path of the time at which it was created, in nanoseconds since 1970. The other fields of
	// the item are empty. Optional: without it only the backend's next answer shows the item.
	Draft map[string]string `yaml:"draft"`
	Born  string            `yaml:"born"`
}

// A PartOf names another list, and the field of an item that holds the id of its whole there.
type PartOf struct {
	List string `yaml:"list"`
	ID   string `yaml:"id"` // path in the item
}

// A Filter is a field of a list's request that narrows the list.
type Filter struct {
	Request string `yaml:"request"` // path in the request
	Item    string `yaml:"item"`    // path in the item
	Match   string `yaml:"match"`   // "prefix" for ids, which may be cut short; "equal" for numbers; "within" for maps: the item's has all entries
	Of      string `yaml:"of"`      // another list; Item is then a path in the item with the same id there
}

// A Status is a call for one item.
type Status struct {
	Method string `yaml:"method"`
	ID     string `yaml:"id"` // path in the request
}

// Check returns every mistake in s for the methods of a package.
func (s Spec) Check(schema *codec.Schema, pkg string) error {
	_, err := Compile(s, schema, pkg, nil)
	errs := append([]error{err}, s.checkStamps(schema, pkg)...)
	for i, l := range s.Lists {
		for _, names := range []struct {
			key string
			all []string
		}{{"changed", l.Changed}, {"removed", l.Removed}, {"created", slices.Sorted(maps.Keys(l.Created))}, {"becomes", slices.Sorted(maps.Keys(l.Becomes))}} {
			for _, name := range names.all {
				if findMethod(schema, pkg, name) == nil && !strings.ContainsAny(name, "*?[") { // a pattern may be for a newer version
					errs = append(errs, fmt.Errorf("known.lists[%d].%s: no method is called %q", i, names.key, name))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// checkStamps returns an error for each stamp that no reply of a package has.
func (s Spec) checkStamps(schema *codec.Schema, pkg string) (errs []error) {
	var replies []protoreflect.MessageDescriptor
	for _, m := range schema.Methods() {
		if inPackage(m, pkg) {
			replies = append(replies, m.Output)
		}
	}
	all := rewrite.Reachable(replies)
	for i, stamp := range s.Stamps {
		if _, err := all.Classify([]rewrite.Rule{{Field: stamp, Class: 1}}); err != nil {
			errs = append(errs, fmt.Errorf("known.stamps[%d]: %w", i, err))
		}
	}
	return errs
}

// CheckDraft returns the paths in the item of a draft that, or whose paths in the request, no version of the API has, and an
// error that says so. A version may lack fields and methods of a newer one.
func (spec List) CheckDraft(schema *codec.Schema) (lacking []string, err error) {
	var items, requests []protoreflect.MessageDescriptor
	for _, m := range schema.Methods() {
		short := path.Base(m.Name)
		if _, creates := spec.Created[short]; creates {
			requests = append(requests, m.Input)
		}
		if field := Repeated(m.Output); field != nil && (short == spec.List || short == spec.Stream) {
			items = append(items, field.Message())
		}
	}
	for _, at := range slices.Sorted(maps.Keys(spec.Draft)) {
		switch from := spec.Draft[at]; {
		case !leads(at, items):
			err = errors.Join(err, fmt.Errorf("draft.%s: no item of %s has this field", at, cmp.Or(spec.List, spec.Stream)))
		case !leads(from, requests):
			err = errors.Join(err, fmt.Errorf("draft.%s: no request that creates an item has the field %s", at, from))
		default:
			continue
		}
		lacking = append(lacking, at)
	}
	return lacking, err
}

// leads reports whether a path leads to a field of at least one message.
func leads(text string, messages []protoreflect.MessageDescriptor) bool {
	return slices.ContainsFunc(messages, func(md protoreflect.MessageDescriptor) bool {
		_, err := rewrite.ParsePath(md, text)
		return err == nil
	})
}
