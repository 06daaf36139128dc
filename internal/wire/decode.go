package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Decode fills m with the message that data is. It is proto.Unmarshal, but for an error
// where that panics: of a type that is not generated, protobuf (1.36.12) does if an entry
// of a map has its key a second time, with a wire type that it cannot have. Data stays the
// caller's. After an error what is in m is undefined.
func Decode(data []byte, m proto.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("protobuf cannot decode it: %v", v)
		}
	}()
	return proto.Unmarshal(data, m)
}
