package wire_test

import (
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/internal/base/wire"
)

func TestDecodePanicsAreErrors(t *testing.T) {
	c := protocompile.Compiler{Resolver: &protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{
		"schema.proto": `syntax = "proto2"; message Top { map<int32, bytes> secrets = 8; }`,
	})}}
	files, err := c.Compile(t.Context(), "schema.proto")
	require.NoError(t, err)
	md := files[0].Messages().ByName("Top")
	message := []byte("\x42\x05\x08\x01\x0a\x01a")
	assert.Panics(t, func() { _ = proto.Unmarshal(message, dynamicpb.NewMessage(md)) }, "protobuf no longer panics: remove wire.Decode")
	assert.ErrorContains(t, wire.Decode(message, dynamicpb.NewMessage(md)), "protobuf cannot decode it")
	assert.NoError(t, wire.Decode([]byte("\x42\x05\x08\x01\x12\x01a"), dynamicpb.NewMessage(md)))
}
