package codec_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
)

func TestWhatProtobufPanicsOfIsAnError(t *testing.T) {
	md := top(t, fuzzSchema)
	message := []byte("\x42\x05\x08\x01\x0a\x01a")
	assert.Panics(t, func() { _ = proto.Unmarshal(message, dynamicpb.NewMessage(md)) }, "codec.Decode is needed no more")
	assert.ErrorContains(t, codec.Decode(message, dynamicpb.NewMessage(md)), "protobuf cannot decode it")
	assert.NoError(t, codec.Decode([]byte("\x42\x05\x08\x01\x12\x01a"), dynamicpb.NewMessage(md)))
}
