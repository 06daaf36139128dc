package calls

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// Patterns have one grammar in every flag and setting that takes some: they are separated by | or commas, and one that
// matches is enough; * stands for any text, ? for one character, [a-z] for one of several; a leading ! selects what none
// matches. Case does not count.

// Matches reports whether patterns select something that has these names. Empty patterns select nothing.
func Matches(patterns string, names ...string) bool {
	parts, not := alternatives(patterns)
	return slices.ContainsFunc(parts, func(p string) bool { return matchesAny(p, names) }) != not
}

// MatchesMethod reports whether patterns select a method, by its name with or without its service.
func MatchesMethod(patterns, method string) bool { return Matches(patterns, methodNames(method)...) }

func methodNames(method string) []string {
	return []string{ShortMethod(method), strings.TrimPrefix(method, "/")}
}

// alternatives returns the single patterns, and whether what they match is left out.
func alternatives(patterns string) (parts []string, not bool) {
	patterns, not = strings.CutPrefix(strings.TrimSpace(patterns), "!")
	for one := range strings.FieldsFuncSeq(patterns, func(r rune) bool { return r == '|' || r == ',' }) {
		if one = strings.TrimSpace(one); one != "" {
			parts = append(parts, one)
		}
	}
	return parts, not
}

// matchesAny reports whether one pattern matches one of the names.
func matchesAny(pattern string, names []string) bool {
	// To path.Match a * is text without a slash, but names of methods have slashes.
	flat := strings.NewReplacer("/", "\x00")
	pattern = flat.Replace(strings.ToLower(pattern))
	return slices.ContainsFunc(names, func(name string) bool {
		ok, err := path.Match(pattern, flat.Replace(strings.ToLower(name)))
		return ok && err == nil
	})
}

// checkPatterns returns the first mistake in the patterns of a flag.
func checkPatterns(flag, patterns string) error {
	parts, _ := alternatives(patterns)
	if len(parts) == 0 && patterns != "" {
		return fmt.Errorf("-%s: %q has no pattern: want one such as web*; | separates several, and a leading ! selects all others", flag, patterns)
	}
	for _, p := range parts {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("-%s: %q is not a pattern: want letters, *, ? and [a-z]; | separates several, and a leading ! selects all others", flag, p)
		}
	}
	return nil
}

// Unmatched returns an error about the first of the patterns of a flag that matches none of the names, which are all that
// there can be. kind is what they name, such as "method".
func Unmatched(flag, patterns, kind string, names []string) error {
	parts, _ := alternatives(patterns)
	for _, p := range parts {
		if matchesAny(p, names) {
			continue
		}
		hint := suggest.Nearest(p, names)
		if start, any := strings.CutSuffix(p, "*"); any && hint == "" {
			var starts []string
			for _, n := range names {
				starts = append(starts, n[:min(len(n), len(start))]+"*")
			}
			hint = suggest.Nearest(p, starts)
		}
		if hint == "" && len(names) <= 20 {
			hint = "; want " + strings.Join(names, ", ")
		}
		return fmt.Errorf("-%s: %q matches no %s%s", flag, p, kind, hint)
	}
	return nil
}

// UnmatchedMethod is [Unmatched] about methods.
func UnmatchedMethod(patterns string, methods []string) error {
	var names []string
	for i := range 2 { // the short names first: they are the better suggestions
		for _, m := range methods {
			names = append(names, methodNames(m)[i])
		}
	}
	return Unmatched("method", patterns, "method of this API", names)
}

// codeNames are the spellings of a code without underscores: gRPC's own and, for Canceled, the British one.
func codeNames(c codes.Code) []string {
	if c == codes.Canceled {
		return []string{c.String(), "Cancelled"}
	}
	return []string{c.String()}
}

func allCodes() (names []string) {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		names = append(names, codeNames(c)...)
	}
	return names
}

// matchesCode reports whether patterns select a code. NOT_FOUND means NotFound.
func matchesCode(patterns string, c codes.Code) bool {
	return Matches(strings.ReplaceAll(patterns, "_", ""), codeNames(c)...)
}
