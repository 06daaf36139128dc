package dump

import (
	"fmt"
	"strconv"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// guess prints a field that the schema does not know: text if it reads as text,
// else a message if it can be one, else bytes.
func (t Text) guess(dst []byte, num protowire.Number, typ protowire.Type, v []byte, depth int) []byte {
	switch typ {
	case protowire.VarintType:
		x, _ := protowire.ConsumeVarint(v)
		return strconv.AppendUint(append(dst, ": "...), x, 10)
	case protowire.Fixed32Type:
		x, _ := protowire.ConsumeFixed32(v)
		return fmt.Appendf(dst, ": %#x", x)
	case protowire.Fixed64Type:
		x, _ := protowire.ConsumeFixed64(v)
		return fmt.Appendf(dst, ": %#x", x)
	case protowire.StartGroupType:
		body, _ := protowire.ConsumeGroup(num, v)
		dst = t.message(append(dst, " {"...), nil, body, depth+1)
		return append(dst, '}')
	}
	b, _ := protowire.ConsumeBytes(v)
	if !isText(b) && isMessage(b) && depth < maxTextDepth {
		dst = t.message(append(dst, " {"...), nil, b, depth+1)
		return append(dst, '}')
	}
	return t.quote(append(dst, ": "...), b)
}

func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			return false
		}
	}
	return true
}

func isMessage(b []byte) bool {
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}
