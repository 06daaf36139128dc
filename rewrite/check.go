package rewrite

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// A checker reads a message as a decoder would, and keeps only its verdict. Lists of thousands of
// items pass through it, so it has a faster loop than the editor has. Both must accept the same messages.
// It lasts for one message and belongs to one goroutine.
type checker struct {
	src     []byte
	badText bool // some text is not UTF-8
}

// message checks the message of type n in src[i:end]. If group is not zero, the message ends with
// that end-group tag instead. It returns the offset after the message, the tag included.
func (c *checker) message(n *node, i, end int, group protowire.Number, depth int) (int, error) {
	if depth > maxDepth {
		return 0, malformed(i, "nested too deep")
	}
	src := c.src[:end]
	for i < end {
		if end-i >= 2 && src[i]&0x87 == byte(protowire.BytesType) && src[i+1] < 0x80 {
			// Nearly every field: length-delimited, with a tag and a length of one byte each.
			body := i + 2
			after := body + int(src[i+1])
			if s := n.step(protowire.Number(src[i] >> 3)); s != nil && after <= end {
				switch {
				case s.class != 0: // a string
					c.text(src[:after], body)
					i = after
					continue
				case s.into != nil:
					if _, err := c.message(s.into, body, after, 0, depth+1); err != nil {
						return 0, err
					}
					i = after
					continue
				}
			}
		}
		f, err := next(src, i)
		if err != nil {
			return 0, err
		}
		if f.num > protowire.MaxValidNumber {
			return 0, malformed(i, fmt.Sprintf("field number %d", f.num))
		}
		s := n.step(f.num)
		switch f.typ {
		case protowire.BytesType:
			switch {
			case s == nil:
			case s.class != 0: // a string
				c.text(src[:f.end], f.body)
			case s.into != nil:
				if _, err := c.message(s.into, f.body, f.end, 0, depth+1); err != nil {
					return 0, err
				}
			case s.packed != 0:
				if err := s.packed.check(src[:f.end], f.body); err != nil {
					return 0, err
				}
			}
			i = f.end
		case protowire.StartGroupType:
			var err error
			if s != nil && s.group != nil {
				i, err = c.message(s.group, f.end, end, f.num, depth+1)
			} else {
				i, err = skipGroup(src, f.end, f.num, depth+1)
			}
			if err != nil {
				return 0, err
			}
		case protowire.EndGroupType:
			if group == 0 || f.num != group {
				return 0, malformed(i, fmt.Sprintf("end of group %d, which was not open", f.num))
			}
			return f.end, nil
		default:
			i = f.end
		}
	}
	if group != 0 {
		return 0, malformed(end, fmt.Sprintf("group %d is not closed", group))
	}
	return end, nil
}

// text checks the text in src[i:], which is nearly always ASCII.
func (c *checker) text(src []byte, i int) {
	if !isASCII(src, i) && !utf8.Valid(src[i:]) {
		c.badText = true
	}
}

// isASCII reports whether src[i:] is ASCII.
func isASCII(src []byte, i int) bool {
	const high = 0x8080808080808080
	for ; len(src)-i >= 8; i += 8 {
		if binary.LittleEndian.Uint64(src[i:])&high != 0 {
			return false
		}
	}
	if len(src) >= 8 { // the last few, out of the last eight
		return binary.LittleEndian.Uint64(src[len(src)-8:])>>(8*uint(8-(len(src)-i)))&high == 0
	}
	for ; i < len(src); i++ {
		if src[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
