package wire

import "google.golang.org/protobuf/encoding/protowire"

// MapEntry returns key and value of an entry of a map, where they are strings, bytes or
// messages; they stay parts of entry. Of several the last one counts. It reports false if
// the entry cannot be read to its end, and returns what it had found by then.
func MapEntry(entry []byte) (key, value []byte, ok bool) {
	for len(entry) > 0 {
		num, typ, tag := protowire.ConsumeTag(entry)
		if tag < 0 {
			return key, value, false
		}
		size := protowire.ConsumeFieldValue(num, typ, entry[tag:])
		if size < 0 {
			return key, value, false
		}
		if typ == protowire.BytesType {
			switch content, _ := protowire.ConsumeBytes(entry[tag:]); num {
			case 1:
				key = content
			case 2:
				value = content
			}
		}
		entry = entry[tag+size:]
	}
	return key, value, true
}
