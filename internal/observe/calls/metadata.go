package calls

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
)

// OfConnection reports whether a key of metadata describes the connection and not the call.
func OfConnection(key string) bool {
	switch key {
	case "content-type", "user-agent", "grpc-accept-encoding", "te":
		return true
	}
	return strings.HasPrefix(key, ":")
}

func appendMetadata(b []byte, way string, md metadata.MD) []byte {
	for _, key := range slices.Sorted(maps.Keys(md)) {
		if OfConnection(key) {
			continue
		}
		for _, v := range md[key] {
			if strings.HasSuffix(key, "-bin") {
				b = fmt.Appendf(b, "    %s %s: %q\n", way, Sanitize(key), v)
			} else {
				b = fmt.Appendf(b, "    %s %s: %s\n", way, Sanitize(key), Sanitize(v))
			}
		}
	}
	return b
}
