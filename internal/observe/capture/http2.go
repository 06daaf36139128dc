package capture

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
)

// Header blocks in HPACK, of literals without indexing and without Huffman coding: each can be decoded alone, and its text is
// in the file as it is.

func appendField(b []byte, name, value string) []byte {
	b = appendHpackString(append(b, 0), name)
	return appendHpackString(b, value)
}

func appendHpackString(b []byte, s string) []byte {
	const prefix = 1<<7 - 1
	if n := len(s); n < prefix {
		b = append(b, byte(n))
	} else {
		b = binary.AppendUvarint(append(b, prefix), uint64(n-prefix))
	}
	return append(b, s...)
}

// appendMD appends metadata as header fields, and returns their number. It skips pseudo-header
// fields.
func appendMD(b []byte, md map[string][]string) ([]byte, int) {
	n := 0
	for _, key := range slices.Sorted(maps.Keys(md)) {
		if strings.HasPrefix(key, ":") {
			continue
		}
		for _, v := range md[key] {
			if strings.HasSuffix(key, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			b = appendField(b, key, v)
			n++
		}
	}
	return b, n
}
