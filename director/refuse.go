package director

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/profile"
)

// refuse returns the error for a method that the schema does not have, or nil if the method goes
// to the primary. The director cannot merge a list that it does not know, and a client that takes
// the primary's part for the whole list forgets the rest. After Unimplemented a client can call a
// method that older servers have.
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
