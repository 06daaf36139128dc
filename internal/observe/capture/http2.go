package capture

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
)

// HTTP/2 as gRPC uses it: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameData     = 0
	frameHeaders  = 1
	frameSettings = 4

	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4

	settingTableSize = 1
	settingFrameSize = 5
	maxFrameSize     = 1<<24 - 1

	// dataSize is the length of DATA frames as gRPC sends them.
	dataSize = 16 << 10
)

func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// appendSettings appends settings by which header blocks have no dynamic table, so that each can be
// decoded alone, and frames may have the greatest length.
func appendSettings(b []byte) []byte {
	var p []byte
	p = binary.BigEndian.AppendUint16(p, settingTableSize)
	p = binary.BigEndian.AppendUint32(p, 0)
	p = binary.BigEndian.AppendUint16(p, settingFrameSize)
	p = binary.BigEndian.AppendUint32(p, maxFrameSize)
	return appendFrame(b, frameSettings, 0, 0, p)
}

// appendField appends a header field in HPACK: a literal without indexing and without Huffman
// coding.
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
