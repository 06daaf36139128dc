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
	return s.Keys != nil && slices.ContainsFunc(s.Keys(fd), func(pattern string) bool { return matchKey(pattern, string(key)) })
}

// Text prints messages without the secrets.
func (s Secrets) Text() Text { return Text{Secret: s.HasField, SecretKey: s.HasKey} }

// matchKey reports whether a key is one that pattern names, in which each star
// stands for anything.
func matchKey(pattern, key string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == key
	}
	if !strings.HasPrefix(key, parts[0]) {
		return false
	}
	key = key[len(parts[0]):]
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		i := strings.Index(key, part)
		if i < 0 {
			return false
		}
		key = key[i+len(part):]
	}
	return strings.HasSuffix(key, parts[last])
}
