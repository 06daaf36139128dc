package dump

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Secrets are the fields whose content is not shown, beyond those that the
// schema itself marks with debug_redact. The zero Secrets are none.
type Secrets struct {
	// Field reports a field. Optional.
	Field func(protoreflect.FieldDescriptor) bool
	// Keys returns the keys of a map whose values are secret, where not all of the
	// map is. A star in a key stands for anything. Optional.
	Keys func(fd protoreflect.FieldDescriptor) []string
}

// HasField reports whether the content of fd is secret.
func (s Secrets) HasField(fd protoreflect.FieldDescriptor) bool {
	return MarkedSecret(fd) || s.Field != nil && s.Field(fd)
}

// HasKey reports whether the entry of the map fd that has this key is secret.
func (s Secrets) HasKey(fd protoreflect.FieldDescriptor, key []byte) bool {
	return s.Keys != nil && MatchesKey(s.Keys(fd), key)
}

// MatchesKey reports whether a key is one of those that Secrets.Keys has returned.
func MatchesKey(patterns []string, key []byte) bool {
	text := string(key)
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matchKey(pattern, text) })
}

// Text prints messages without the secrets.
func (s Secrets) Text() Text { return Text{Secrets: s} }

// matchKey reports whether a key is one that pattern names, in which each star
// stands for anything.
func matchKey(pattern, key string) bool {
	part, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == key
	}
	key, ok := strings.CutPrefix(key, part)
	for ok {
		if part, rest, star = strings.Cut(rest, "*"); !star {
			return strings.HasSuffix(key, part)
		}
		_, key, ok = strings.Cut(key, part)
	}
	return false
}
