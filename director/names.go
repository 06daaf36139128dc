package director

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// shortName is the last part of a full method: "Version" of
// "/runtime.v1.RuntimeService/Version".
func shortName(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

func match(pattern, name string) bool {
	ok, _ := path.Match(pattern, name) // Profile.check has seen the pattern
	return ok
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
