package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Decode decodes data into m. It is proto.Unmarshal, but returns an error where that panics:
// protobuf (1.36.12) panics on a dynamic message if an entry of a map repeats its key with an
// impossible wire type. Decode does not keep data. After an error the content of m is undefined.
func Decode(data []byte, m proto.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("protobuf cannot decode it: %v", v)
		}
	}()
	return proto.Unmarshal(data, m)
}
