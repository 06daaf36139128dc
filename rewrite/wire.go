package rewrite

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxDepth is the limit to how deep messages may nest, the same as protobuf-go's. It
// keeps a hostile message from growing our stack without end.
const maxDepth = 10000

// A MalformedError says where a message stops being valid protobuf.
type MalformedError struct {
	Offset int    // bytes from the start of the message
	Reason string // what is wrong there
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed protobuf at byte %d: %s", e.Offset, e.Reason)
}

// malformed returns a [MalformedError]. The caller of the package knows src, so offset counts in the src that it gave.
func malformed(offset int, reason string) error {
	return &MalformedError{Offset: offset, Reason: reason}
}

// varint reads the varint at src[i:] and returns it with the offset after it.
// A negative offset means that src ends too early or the varint is too long.
//
// Nearly all tags and lengths are one or two bytes long.
func varint(src []byte, i int) (uint64, int) {
	if i < len(src) {
		b := src[i]
		if b < 0x80 {
			return uint64(b), i + 1
		}
		if i+1 < len(src) && src[i+1] < 0x80 {
			return uint64(b&0x7f) | uint64(src[i+1])<<7, i + 2
		}
	}
	v, n := protowire.ConsumeVarint(src[min(i, len(src)):])
	if n < 0 {
		return 0, -1
	}
	return v, i + n
}

// skipVarint returns the offset after the varint at src[i:], negative if it
// ends too early or is too long.
func skipVarint(src []byte, i int) int {
	for end := i; end < len(src) && end < i+protowire.SizeVarint(math.MaxUint64); end++ {
		if b := src[end]; b < 0x80 {
			if end == i+9 && b > 1 {
				return -1 // more than 64 bits
			}
			return end + 1
		}
	}
	return -1
}

// field is one field of a message as it lies on the wire.
type field struct {
	num  protowire.Number
	typ  protowire.Type
	body int // where the value begins: after the length of a BytesType, after the tag of all others
	end  int // where the next field begins; for groups, the same as body
}

// short is [next] for nearly all fields: those that are length-delimited, with a tag of one byte
// and a length of one or two. It reports false for any other field.
func short(src []byte, i int) (f field, ok bool) {
	if i+2 >= len(src) || src[i]&0x87 != byte(protowire.BytesType) || src[i] < 8 {
		return f, false
	}
	n, body := int(src[i+1]), i+2
	if n >= 0x80 {
		n, body = n&0x7f|int(src[i+2])<<7, i+3
		if src[i+2] >= 0x80 {
			return f, false
		}
	}
	return field{protowire.Number(src[i] >> 3), protowire.BytesType, body, body + n}, body+n <= len(src)
}

// next reads the field at src[i:]. It does not read the body of a group, which the caller reads
// or skips. It fails for an invalid field, a length beyond the end of src included.
func next(src []byte, i int) (f field, err error) {
	tag, j := varint(src, i)
	if j < 0 {
		return f, malformed(i, "bad tag")
	}
	num := tag >> 3
	if num == 0 || num > math.MaxInt32 { // protowire's limit, which is above that of schemas
		return f, malformed(i, fmt.Sprintf("field number %d", num))
	}
	f.num, f.typ, f.body = protowire.Number(num), protowire.Type(tag&7), j
	switch f.typ {
	case protowire.BytesType:
		n, k := varint(src, j)
		if k < 0 {
			return f, malformed(j, "bad length")
		}
		if n > uint64(len(src)-k) {
			return f, malformed(j, fmt.Sprintf("length %d, but %d bytes are left", n, len(src)-k))
		}
		f.body, f.end = k, k+int(n)
	case protowire.VarintType:
		if f.end = skipVarint(src, j); f.end < 0 {
			return f, malformed(j, "bad varint")
		}
	case protowire.Fixed32Type:
		f.end = j + 4
	case protowire.Fixed64Type:
		f.end = j + 8
	case protowire.StartGroupType, protowire.EndGroupType:
		f.end = j
	default:
		return f, malformed(i, fmt.Sprintf("wire type %d", f.typ))
	}
	if f.end > len(src) {
		return f, malformed(j, "value is cut off")
	}
	return f, nil
}

// whole reads the field at src[i:], if it is a group to its end, and returns it with the offset
// after it.
func whole(src []byte, i int) (f field, after int, err error) {
	if f, err = next(src, i); err != nil {
		return f, 0, err
	}
	switch f.typ {
	case protowire.StartGroupType:
		after, err = skipGroup(src, f.end, f.num, 1)
		return f, after, err
	case protowire.EndGroupType:
		return f, 0, malformed(i, fmt.Sprintf("end of group %d, which was not open", f.num))
	default:
		return f, f.end, nil
	}
}

// skipGroup returns the offset after the group num whose body starts at i.
func skipGroup(src []byte, i int, num protowire.Number, depth int) (int, error) {
	if depth > maxDepth {
		return 0, malformed(i, "nested too deep")
	}
	for i < len(src) {
		f, err := next(src, i)
		if err != nil {
			return 0, err
		}
		switch f.typ {
		case protowire.StartGroupType:
			if i, err = skipGroup(src, f.end, f.num, depth+1); err != nil {
				return 0, err
			}
		case protowire.EndGroupType:
			if f.num != num {
				return 0, malformed(i, fmt.Sprintf("group %d is closed as group %d", num, f.num))
			}
			return f.end, nil
		default:
			i = f.end
		}
	}
	return 0, malformed(i, fmt.Sprintf("group %d is not closed", num))
}
