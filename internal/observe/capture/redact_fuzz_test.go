package capture

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// secretPlaces are the places of a PutRequest that may hold a secret, if titles and the label
// "password" are secret.
var secretPlaces = []func(secret []byte) []byte{
	func(secret []byte) []byte { return bytesField(1, bytesField(2, secret)) },
	func(secret []byte) []byte { return bytesField(1, bytesField(3, bytesField(3, bytesField(2, secret)))) },
	func(secret []byte) []byte {
		return bytesField(3, append(bytesField(1, []byte("password")), bytesField(2, secret)...))
	},
	func(secret []byte) []byte {
		return bytesField(3, append(bytesField(2, secret), bytesField(1, []byte("password"))...))
	},
}

func bytesField(num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
}

// FuzzRedactHides checks that a recording does not depend on the content of a secret, wherever the
// secret is, whatever surrounds it, and wherever the message is cut off. (The fields before the
// secret must be whole, or the secret would be a part of them.)
func FuzzRedactHides(f *testing.F) {
	r := NewRedactor(muxtest.Library, dump.Secrets{
		Field: func(fd protoreflect.FieldDescriptor) bool { return fd.FullName() == "library.v1.Book.title" },
		Keys:  func(protoreflect.FieldDescriptor) []string { return []string{"password"} },
	})
	put := muxtest.Frame(f, "PutRequest", `book {id: "7f" title: "T" quotes {title: "Q" colour: BLUE}} shelf: "s" labels {key: "a" value: "v"}`).Bytes()
	for place := range secretPlaces {
		f.Add(put, []byte("hunter22"), put, byte(place), uint16(0))
		f.Add([]byte{}, []byte("hunter22"), []byte("\xff"), byte(place), uint16(3))
		f.Add(put, bytes.Repeat([]byte("hunter22"), 40), []byte{}, byte(place), uint16(100))
	}
	f.Fuzz(func(t *testing.T, before, secret, after []byte, place byte, cut uint16) {
		for rest := before; len(rest) > 0; {
			_, _, n := protowire.ConsumeField(rest)
			if n < 0 {
				return
			}
			rest = rest[n:]
		}
		recorded := func(secret []byte) string {
			b := append(bytes.Clone(before), secretPlaces[int(place)%len(secretPlaces)](secret)...)
			b = append(b, after...)
			b = b[:max(0, len(b)-int(cut))]
			ev := Event{Kind: Request, Method: muxtest.Method("Put"), Payload: b, Size: len(b), Truncated: cut > 0}
			r.concerns(ev.Method, ev.Kind).event(&ev)
			return string(ev.Payload)
		}
		require.Equal(t, recorded(bytes.Repeat([]byte{'?'}, len(secret))), recorded(secret))
	})
}
