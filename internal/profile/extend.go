package profile

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/inventory"
)

// Extend returns the profile with more rules, which go before its own: for fields and methods of
// a newer version of the API. Rules may have every section of a profile except versions and
// probe. Extend changes neither profile.
func (p *Profile) Extend(rules *Profile) (*Profile, error) {
	if len(rules.Versions) > 0 || rules.Probe != "" {
		return nil, rules.Located(errors.New("versions: rules are added to a profile, and cannot have versions or probe; leave them out"))
	}
	all := *p
	all.Names = joined(p.Names, rules.Names)
	all.Edits = joined(p.Edits, rules.Edits)
	all.Fields = joined(p.Fields, rules.Fields)
	all.About = joined(p.About, rules.About)
	all.Harmless = map[string][]string{}
	all.Methods = joined(p.without(rules.Methods), rules.Methods)
	all.Known.Lists = slices.Clone(p.Known.Lists)
	all.Known.Replies = slices.Concat(p.Known.Replies, rules.Known.Replies)
	all.Known.Stamps = slices.Concat(p.Known.Stamps, rules.Known.Stamps)
	all.Secret = slices.Concat(p.Secret, rules.Secret)
	all.Reads = slices.Concat(p.Reads, rules.Reads)
	all.Volatile = slices.Concat(p.Volatile, rules.Volatile)
	all.Quiet = joined(p.Quiet, rules.Quiet)
	all.Written.Requests = joined(p.Written.Requests, rules.Written.Requests)
	all.Written.Replies = joined(p.Written.Replies, rules.Written.Replies)
	all.Unimplemented = slices.Concat(p.Unimplemented, rules.Unimplemented)
	all.Elsewhere = slices.Concat(p.Elsewhere, rules.Elsewhere)
	all.places = joined(p.places, rules.places)
	for message, fields := range p.Harmless {
		for _, field := range fields {
			if _, named := rules.Fields[message+"."+field]; !named {
				all.Harmless[message] = append(all.Harmless[message], field)
			}
		}
	}
	for message, fields := range rules.Harmless {
		for _, field := range fields {
			delete(all.Fields, message+"."+field)
			if !slices.Contains(all.Harmless[message], field) {
				all.Harmless[message] = append(all.Harmless[message], field)
			}
		}
	}
	for _, l := range rules.Known.Lists {
		all.Known.Lists = slices.DeleteFunc(all.Known.Lists, func(old inventory.List) bool { return old.List == l.List })
		all.Known.Lists = append(all.Known.Lists, l)
	}
	if err := all.Located(all.Check()); err != nil {
		return nil, err
	}
	return &all, nil
}

// joined returns both maps as one; entries of more replace those of m.
func joined[V any](m, more map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, m)
	maps.Copy(all, more)
	return all
}

// without returns the profile's methods without the names that are keys of rules.
func (p *Profile) without(rules map[string]MethodForm) map[string]MethodForm {
	named := map[string]bool{}
	for key := range rules {
		for _, one := range alternatives(key) {
			named[one] = true
		}
	}
	rest := map[string]MethodForm{}
	for key, form := range p.Methods {
		ones := slices.DeleteFunc(alternatives(key), func(one string) bool { return named[one] })
		if len(ones) > 0 {
			rest[strings.Join(ones, "|")] = form
		}
	}
	return rest
}
