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
// matches. Case does not count. A pattern for methods is about a method's own name; one with a slash is about
// Service/Method or the full name. In the same way one for pods is about a name, or NAMESPACE/NAME. page/filter.js has the
// same grammar; testdata/patterns.txt holds both to it.

// Matches reports whether patterns select something that has these names. Empty patterns select nothing, and no patterns
// select what has no name: a call about no pod is not one about other pods.
func Matches(patterns string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return name != "" }) && matches(patterns, func(string) []string { return names })
}

// MatchesMethod reports whether patterns select a method, whose full name is given.
func MatchesMethod(patterns, method string) bool {
	return matches(patterns, func(pattern string) []string { return methodNames(pattern, method) })
}

// matchesPod reports whether patterns select the pod that a call is about.
func matchesPod(patterns string, a About) bool {
	return a.Pod != "" && matches(patterns, func(pattern string) []string {
		if strings.Contains(pattern, "/") {
			return []string{strings.TrimPrefix(a.Namespace+"/"+a.Pod, "/")}
		}
		return []string{a.Pod}
	})
}

// matches is [Matches] for names that depend on the pattern.
func matches(patterns string, namesFor func(pattern string) []string) bool {
	parts, not := alternatives(patterns)
	return slices.ContainsFunc(parts, func(p string) bool { return matchesAny(p, namesFor(p)) }) != not
}

// methodNames returns the names of a method that a pattern may match.
func methodNames(pattern, method string) []string {
	if !strings.Contains(pattern, "/") {
		return []string{ShortMethod(method)}
	}
	full := strings.TrimPrefix(method, "/")
	service, _, _ := strings.Cut(full, "/")
	return []string{full[strings.LastIndexByte(service, '.')+1:], full, method}
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

const grammar = "| or a comma separates several, and a leading ! selects all others"

// checkPatterns returns the first mistake in the patterns of a flag.
func checkPatterns(flag, patterns string) error {
	parts, not := alternatives(patterns)
	if len(parts) == 0 && patterns != "" {
		return fmt.Errorf("-%s: invalid pattern %q: want one such as web*; %s", flag, patterns, grammar)
	}
	for _, p := range parts {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("-%s: invalid pattern %q: want letters, *, ? and [a-z]; %s", flag, p, grammar)
		}
		if not && strings.Trim(p, "*") == "" {
			return fmt.Errorf("-%s: %q selects nothing: * is any text, and a leading ! selects all others", flag, patterns)
		}
	}
	return nil
}

// Unmatched returns an error about the first of the patterns of a flag that matches none of the names, which are all that
// there can be, or about patterns that leave out all of them. kind is what they name, such as "backend".
func Unmatched(flag, patterns, kind string, names []string) error {
	return unmatched(flag, patterns, kind, names, func(name, _ string) []string { return []string{name} })
}

// UnmatchedMethod is [Unmatched] about methods, whose full names are given.
func UnmatchedMethod(patterns string, methods []string) error {
	methods = slices.Compact(slices.Sorted(slices.Values(methods)))
	return unmatched("method", patterns, "method of this API", methods, func(method, pattern string) []string { return methodNames(pattern, method) })
}

// unmatched is [Unmatched] for things whose names depend on the pattern.
func unmatched(flag, patterns, kind string, all []string, namesOf func(one, pattern string) []string) error {
	parts, not := alternatives(patterns)
	for _, p := range parts {
		var names []string
		for _, one := range all {
			names = append(names, namesOf(one, p)...)
		}
		if matchesAny(p, names) {
			continue
		}
		hint := suggest.Nearest(p, names)
		if hint == "" && len(names) <= 20 {
			hint = "; want " + strings.Join(names, ", ")
		}
		return fmt.Errorf("-%s: %q matches no %s%s", flag, p, kind, hint)
	}
	selected := func(one string) bool {
		return matches(patterns, func(pattern string) []string { return namesOf(one, pattern) })
	}
	if not && !slices.ContainsFunc(all, selected) {
		return fmt.Errorf("-%s: %q selects nothing: it names every %s, and a leading ! selects all others", flag, patterns, kind)
	}
	return nil
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
