package dump

import (
	"bytes"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// guess guesses whether a field that the schema does not know is a message: it is one if it is a
// group, or if its bytes are a well-formed message and not text. It returns the content of groups
// and of length-delimited fields.
func guess(f wire.Field, depth int) (body []byte, isMessage bool) {
	switch f.Type {
	case protowire.StartGroupType:
		return f.Bytes(), true
	case protowire.BytesType:
		body = f.Bytes()
		return body, depth < maxDepth && !isText(body) && wellFormed(body)
	}
	return nil, false
}

func isText(b []byte) bool {
	return utf8.Valid(b) && !bytes.ContainsFunc(b, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' })
}

func wellFormed(b []byte) bool {
	for _, err := range wire.Fields(b) {
		if err != nil {
			return false
		}
	}
	return true
}
