package profile

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/suggest"
)

// ShortName returns the last part of a full method: "Version" of
// "/runtime.v1.RuntimeService/Version".
func ShortName(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// PackageOf returns the package of a full method: "runtime.v1" of
// "/runtime.v1.RuntimeService/Version".
func PackageOf(full string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return service[:max(strings.LastIndexByte(service, '.'), 0)]
}

// How exactly a profile names a method, the most exact first.
const (
	byService        = iota // "Books/Get"
	byName                  // "Get"
	byServicePattern        // "Books/*"
	byPattern               // "Get*"
	ranks
)

// rank reports whether one, a name or a pattern, matches the method full, and how exactly.
func rank(one, full string) (int, bool) {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	r := byName
	matches := Match(one, name)
	if strings.Contains(one, "/") {
		r = byService
		short := service[strings.LastIndexByte(service, '.')+1:]
		matches = Match(one, short+"/"+name) || Match(one, service+"/"+name)
	}
	if strings.Contains(one, "*") {
		r += 2
	}
	return r, matches
}

// Match reports whether pattern matches name. A malformed pattern matches nothing.
func Match(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

// OnlyReads reports whether Reads has the method with a short name, or all methods that a pattern matches: a star in the pattern
// matches only a star in Reads.
func (p *Profile) OnlyReads(name string) bool {
	return slices.ContainsFunc(p.Reads, func(pattern string) bool { return Match(pattern, name) })
}

// alternatives returns the names and patterns in a key.
func alternatives(key string) []string { return strings.Split(key, "|") }

// Method returns the rules of the profile for a method, and the key that has them. If several keys
// match the method, the most exact one counts; two that are equally exact are an error.
func (p *Profile) Method(full string) (MethodForm, string, error) {
	var keys, ones [ranks][]string
	for _, key := range sortedKeys(p.Methods) {
		for _, one := range alternatives(key) {
			if r, ok := rank(one, full); ok {
				keys[r], ones[r] = append(keys[r], key), append(ones[r], one)
			}
		}
	}
	for r := range ranks {
		switch {
		case len(slices.Compact(slices.Clone(keys[r]))) > 1:
			return MethodForm{}, "", fmt.Errorf("methods.%s: %s is matched by %s; write it out under its own name",
				keys[r][1], ShortName(full), strings.Join(ones[r], " and "))
		case len(keys[r]) > 0:
			return p.Methods[keys[r][0]], keys[r][0], nil
		}
	}
	return MethodForm{}, ShortName(full), nil
}

// unmatched reports whether a key has a name of no method, or matches no method at all. In a key
// that matches a method, another pattern may match nothing: it may be for a newer version.
func unmatched(key string, methods []*codec.Method) (missing string, bad bool) {
	any := false
	for _, one := range alternatives(key) {
		has := slices.ContainsFunc(methods, func(m *codec.Method) bool { _, ok := rank(one, m.Name); return ok })
		if !has && (missing == "" || !strings.Contains(one, "*")) {
			missing = one
		}
		if !has && !strings.Contains(one, "*") {
			bad = true
		}
		any = any || has
	}
	return missing, bad || !any
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Unmatched returns an error for each key under methods and quiet, and each name under reads, that matches no method.
func (p *Profile) Unmatched(methods []*codec.Method) error {
	var errs []error
	var names []string
	for _, m := range methods {
		names = append(names, ShortName(m.Name))
	}
	look := func(section, key string) {
		if missing, bad := unmatched(key, methods); bad {
			errs = append(errs, fmt.Errorf("%s.%s: no method is called %q%s", section, key, missing, suggest.Nearest(ShortName(missing), names)))
		}
	}
	for _, key := range sortedKeys(p.Methods) {
		look("methods", key)
	}
	for _, key := range sortedKeys(p.Quiet) {
		look("quiet", key)
	}
	for i, key := range p.Reads {
		if missing, bad := unmatched(key, methods); bad && !strings.Contains(key, "*") {
			errs = append(errs, fmt.Errorf("reads[%d]: no method is called %q%s", i, missing, suggest.Nearest(ShortName(missing), names)))
		}
	}
	return errors.Join(errs...)
}
