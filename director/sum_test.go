package director_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/prototest"
)

// counts is the schema of an API that counts.
func counts(t *testing.T) *codec.Schema {
	return codec.NewSchema(prototest.Compile(t, map[string]string{"counts.proto": `syntax = "proto3";
		package counts.v1;
		service Counts { rpc Count(Request) returns (Reply); rpc Watch(Request) returns (stream Reply); }
		message Request {}
		message Reply { int32 total = 1; uint64 bytes = 2; string unit = 3; repeated string names = 4; }`}, "counts.proto"))
}

func countsProfile(t *testing.T, methods string) *director.Profile {
	p, err := director.ParseProfile([]byte("versions: [{package: counts.v1}]\nmethods: {" + methods + "}"))
	require.NoError(t, err)
	return p
}

// A merged list used to have the count of one backend alone.
func TestCountsAreAddedUp(t *testing.T) {
	schema := counts(t)
	reply := schema.Method("/counts.v1.Counts/Count").Output
	says := func(text string) muxtest.Handler {
		return muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
			return codec.NewFrame(prototest.Marshal(t, reply, text)), nil
		})
	}
	conn := muxtest.Mux(t, director.Config{Schema: schema, Profile: countsProfile(t, "Count: {all: concat, winners: {total: sum, bytes: sum, unit: first}}")},
		says(`total: 2 bytes: 18446744073709551615 unit: "b" names: ["x", "y"]`), says(`total: -5`), says(`total: 1 bytes: 7 unit: "c" names: ["z"]`))
	got := &codec.Frame{}
	require.NoError(t, conn.Invoke(t.Context(), "/counts.v1.Counts/Count", codec.NewFrame(nil), got))
	assert.Equal(t, `unit: "b" names: "x" names: "y" names: "z" total: 3 bytes: 18446744073709551615`, string(dump.Text{}.Append(nil, reply, got.Bytes())))
}

func TestOnlyWholeNumbersAreAddedUp(t *testing.T) {
	for methods, want := range map[string]string{
		"Count: {all: concat, winners: {total: sum, bytes: sum, unit: sum}}": "2:32: methods.Count.winners: unit: is string, and sum is for whole numbers: int32, int64, uint32 and uint64",
		"Watch: {all: concat, winners: {total: sum}}":                        "2:32: methods.Watch.winners: total: there is no sum over the messages of a stream; want primary, first or last",
	} {
		_, err := director.New(director.Config{Schema: counts(t), Profile: countsProfile(t, methods), Backends: []director.Backend{{}}})
		assert.EqualError(t, err, want)
	}
}
