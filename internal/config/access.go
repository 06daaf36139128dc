package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/profile"
)

// ReadOnly is the pattern that stands for the methods that only read.
const ReadOnly = "read-only"

// OwnMethods is the pattern for the methods that criproxy serves itself.
const OwnMethods = "/grpc.health.v1.Health/*"

// CheckMethods returns an error for each pattern of an access list that fits none of the known methods, which are full
// names such as "/runtime.v1.RuntimeService/Version". Such a pattern allows nothing, and an administrator would notice
// only when a client needs it. Patterns for other packages are allowed: calls of their services pass to the primary.
func (c *Config) CheckMethods(known []string, isCRI bool) error {
	var errs []error
	for i, l := range c.Listeners {
		for j, r := range l.Access {
			for k, pattern := range r.Methods {
				if checkPattern(pattern) != nil {
					continue // Check reports it
				}
				if err := fits(pattern, append(known, path.Dir(OwnMethods)+"/Check"), isCRI); err != nil {
					errs = append(errs, fmt.Errorf("listeners[%d].access[%d].methods[%d]: %w", i, j, k, err))
				}
			}
		}
	}
	return c.Locate(errors.Join(errs...))
}

// Locate returns err with the lines of the file that its settings stand in.
func (c *Config) Locate(err error) error { return c.places.Locate(err) }

// fits returns an error if a pattern fits no known method.
func fits(pattern string, known []string, isCRI bool) error {
	if pattern == ReadOnly {
		return nil
	}
	var names []string
	for _, name := range known {
		if !strings.HasPrefix(pattern, "/") {
			name = path.Base(name)
		}
		names = append(names, name)
	}
	switch {
	case strings.HasPrefix(pattern, "/") && !slices.ContainsFunc(names, func(name string) bool { return profile.PackageOf(name) == profile.PackageOf(pattern) }):
		return nil // of another API, or a pattern for packages
	case !strings.HasPrefix(pattern, "/") && !isCRI:
		return fmt.Errorf("%q: short names are for CRI only; want the full name of a method, such as %q", pattern, known[0])
	case slices.ContainsFunc(names, func(name string) bool { ok, _ := path.Match(pattern, name); return ok }):
		return nil
	}
	for _, name := range names {
		if ok, _ := path.Match(strings.ToLower(pattern), strings.ToLower(name)); ok {
			begins, rest, star := strings.Cut(pattern, "*")
			if star {
				rest = "*" + rest
			}
			return fmt.Errorf("%q fits no method, because upper and lower case matter (did you mean %q?)", pattern, name[:len(begins)]+rest)
		}
	}
	return fmt.Errorf("%q fits no method%s", pattern, suggest.Nearest(pattern, append(names, ReadOnly)))
}
