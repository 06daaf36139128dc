package profile

import (
	"errors"
	"fmt"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// The parts that say what a call is about.
const (
	AboutID        = "id"
	AboutName      = "name"
	AboutNamespace = "namespace"
)

// abouts are all parts. The class of a field is an index here.
var abouts = []string{"", AboutID, AboutName, AboutNamespace}

// Shown returns the fields of s that say what a call is about: full name of the field → its part. A
// field that holds the name of one backend is an id, unless About says otherwise.
func (p *Profile) Shown(s *codec.Schema) (map[string]string, error) {
	all := MessagesOf(p.Describes(s))
	fields, err := FieldsOf(p, s)
	if err != nil {
		return nil, err
	}
	classes, err := p.classifyAbout(all)
	if err != nil {
		return nil, err
	}
	shown := map[string]string{}
	for _, md := range all.All() {
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			part := abouts[classes.Of(fd)]
			if form, named := p.Names[fields.Kind(fd)]; part == "" && named && form.Map == "" {
				part = AboutID
			}
			if part != "" {
				shown[string(fd.FullName())] = part
			}
		}
	}
	return shown, nil
}

// eachMistake returns err with each mistake replaced by what f makes of it.
func eachMistake(err error, f func(error) error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var errs []error
	for _, one := range joined.Unwrap() {
		errs = append(errs, f(one))
	}
	return errors.Join(errs...)
}

func (p *Profile) classifyAbout(all *rewrite.Messages) (*rewrite.Classes, error) {
	var rules []rewrite.Rule
	for _, field := range sortedKeys(p.About) {
		for class, part := range abouts {
			if part == p.About[field] {
				rules = append(rules, rewrite.Rule{Field: field, Class: rewrite.Class(class)})
			}
		}
	}
	classes, err := all.Classify(rules)
	if err != nil {
		return nil, eachMistake(err, func(one error) error { return fmt.Errorf("about.%w", one) })
	}
	return classes, nil
}
