package profile

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// winners are the possible winners of a field that is no list.
var winners = []string{"primary", "first", "last", "sum"}

// Check returns every mistake that can be found without a schema.
func (p *Profile) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(p.Versions) == 0 {
		fail("versions: want at least one package")
	}
	if len(p.Versions) > 1 && p.Probe == "" {
		fail("probe: want a method as \"Service/Method\", to find out which of %d versions a backend speaks", len(p.Versions))
	}
	for kind, form := range p.Names {
		switch {
		case kind == "backend" || kind == "known" || kind == "told":
			fail("names.%s: this kind is built in, choose another name", kind)
		case form.Map != "" && form.Front != "":
			fail("names.%s: has both front and map, want one", kind)
		case form.Map == "" && len(form.Empty) > 0:
			fail("names.%s.empty: is for map", kind)
		case form.Map == "":
			if _, err := form.Separator(); err != nil {
				fail("names.%s.front: %w", kind, err)
			}
			if form.Bare != "primary" && form.Bare != "anyone" {
				fail("names.%s.bare: %q: want \"primary\" or \"anyone\"", kind, form.Bare)
			}
		}
	}
	for class := range p.Edits {
		if _, twice := p.Names[class]; twice {
			fail("edits.%s: is a kind of name already", class)
		}
	}
	for field, class := range p.Fields {
		if _, ok := p.Names[class]; !ok {
			if _, ok := p.Edits[class]; !ok {
				fail("fields.%s: %q is neither under names nor under edits%s", field, class, suggest.Nearest(class, append(sortedKeys(p.Names), sortedKeys(p.Edits)...)))
			}
		}
	}
	for field, part := range p.About {
		if part == "" || !slices.Contains(abouts, part) {
			fail("about.%s: %q: want %s%s", field, part, strings.Join(abouts[1:], ", "), suggest.Nearest(part, abouts[1:]))
		}
	}
	patterns := func(section string, all []string) {
		for i, pattern := range all {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				fail("%s[%d]: invalid pattern %q: want one such as List*", section, i, pattern)
			}
		}
	}
	patterns("unimplemented", p.Unimplemented)
	for i, name := range p.Elsewhere {
		if service, method, ok := strings.Cut(name, "/"); !ok || service == "" || method == "" || strings.Contains(method, "/") {
			fail("elsewhere[%d]: invalid method %q: want one such as package.Service/Method", i, name)
		}
	}
	patterns("reads", p.Reads)
	patterns("volatile", p.Volatile)
	for pattern, level := range p.Quiet {
		if level < 4 || level > 9 {
			fail("quiet.%s: %d: want a level from 4 to 9; 3 is the level of all other methods", pattern, level)
		}
	}
	for pattern, form := range p.Methods {
		for _, one := range strings.Split(pattern, "|") {
			if _, err := path.Match(one, ""); err != nil {
				fail("methods.%s: invalid pattern %q: want one such as List*", pattern, one)
			}
		}
		if len(form.Winners) > 0 && form.All != "concat" {
			fail("methods.%s.winners: is for all: concat", pattern)
		}
		for field, winner := range form.Winners {
			if !slices.Contains(winners, winner) {
				fail("methods.%s.winners.%s: %q: want %s", pattern, field, winner, strings.Join(winners, ", "))
			}
		}
		if form.Unsure != "" && form.First == "" {
			fail("methods.%s.unsure: is for first", pattern)
		}
		if form.Resync != "" && form.All != "endless" {
			fail("methods.%s.resync: is for all: endless", pattern)
		}
		if form.All != "" && form.First != "" {
			fail("methods.%s: has both all and first, want one", pattern)
		}
		if form.Missing != "" && form.All == "mirror" {
			fail("methods.%s.missing: is not for all: mirror, which leaves out a backend that lacks the method", pattern)
		}
		if form.Missing != "" && form.Missing != "fail" && form.Missing != "skip" {
			fail("methods.%s.missing: %q: want \"fail\" or \"skip\"", pattern, form.Missing)
		}
		if form.Mismatch != "" && form.Mismatch != "invalid" && form.Mismatch != "not-found" {
			fail("methods.%s.mismatch: %q: want \"invalid\" or \"not-found\"", pattern, form.Mismatch)
		}
		for _, c := range form.Choose {
			if _, ok := p.Names[c.Kind]; !ok && c.Kind != "backend" && c.Kind != "known" && c.Kind != "told" {
				fail("methods.%s.choose: %q is neither \"backend\", \"known\", \"told\" nor under names", pattern, c.Kind)
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Separator returns the text between backend and name in Front.
func (form NameForm) Separator() (string, error) {
	sep, ok := strings.CutPrefix(form.Front, "{backend}")
	if ok {
		sep, ok = strings.CutSuffix(sep, "{name}")
	}
	if !ok || sep == "" {
		return "", fmt.Errorf("%q: want \"{backend}\", a separator and \"{name}\"", form.Front)
	}
	return sep, nil
}

// CheckBackendName returns an error if name cannot be the name of a backend. The name is a prefix
// of ids and images, where the director must recognize it.
func CheckBackendName(name string) error {
	for _, bad := range []string{"://", "/", "__"} {
		if strings.Contains(name, bad) {
			return fmt.Errorf("backend name %q: contains %q, which separates a name from what follows it; leave it out", name, bad)
		}
	}
	if strings.ContainsAny(name, " \t\r\n,:@\"") {
		return fmt.Errorf("backend name %q: contains white space or one of , : @ \"; use letters, digits, dots and single underscores", name)
	}
	if strings.HasSuffix(name, "_") {
		return fmt.Errorf("backend name %q: ends in an underscore, which runs into the separator \"__\"; leave it out", name)
	}
	return nil
}
