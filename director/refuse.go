package director

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/profile"
)

// refuse returns the error of a method that the schema does not have; nil if the method goes
// to the primary. The primary has only a part of a list, and a client that takes the part for
// the whole forgets the rest. After Unimplemented a client asks in the way that older servers
// understand.
func (t *table) refuse(name string) error {
	if len(t.backends) == 1 || !t.ours(name) ||
		!slices.ContainsFunc(t.unimplemented, func(pattern string) bool { return profile.Match(pattern, profile.ShortName(name)) }) {
		return nil
	}
	return status.Errorf(codes.Unimplemented, "criproxy: %s: criproxy's description of this API does not have this method, and of %d backends only the primary would answer; give criproxy the .proto file of the method (proto: in the configuration)",
		profile.ShortName(name), len(t.backends))
}

// ours reports whether a method belongs to the API of the profile, in any version.
func (t *table) ours(name string) bool {
	return slices.ContainsFunc(t.packages, func(pkg string) bool { return strings.HasPrefix(name, "/"+pkg+".") })
}
