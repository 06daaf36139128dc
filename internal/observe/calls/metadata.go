package calls

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Pairs returns the keys and values of metadata in order. It leaves out keys that say nothing about the call.
func Pairs(md metadata.MD) (all [][2]string) {
	for _, key := range slices.Sorted(maps.Keys(md)) {
		if capture.OfConnection(key) {
			continue
		}
		for _, v := range md[key] {
			if strings.HasSuffix(key, "-bin") {
				v = strconv.Quote(v)
			}
			all = append(all, [2]string{key, v})
		}
	}
	return all
}

func appendMetadata(b []byte, way string, md metadata.MD) []byte {
	for _, p := range Pairs(md) {
		b = fmt.Appendf(b, "    %s %s: %s\n", way, Sanitize(p[0]), Sanitize(p[1]))
	}
	return b
}
