package director_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
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

// lists is the method of an API that lists items.
func lists(t *testing.T) (*codec.Schema, *codec.Method) {
	schema := codec.NewSchema(prototest.Compile(t, map[string]string{"lists.proto": `syntax = "proto3";
		package lists.v1;
		service Lists { rpc List(Request) returns (Reply); }
		message Request { string id = 1; }
		message Item { string id = 1; }
		message Reply { repeated Item items = 1; int32 total = 2; string of = 3; string earliest = 4; string latest = 5; }`}, "lists.proto"))
	return schema, schema.Method("/lists.v1.Lists/List")
}

// askLists lists the items of some backends, all or those with an id.
func askLists(t *testing.T, request string, backends ...director.Backend) string {
	t.Helper()
	schema, list := lists(t)
	p, err := director.ParseProfile([]byte(`
versions: [{package: lists.v1}]
names: {item: {front: "{backend}__{name}", bare: anyone}}
fields: {Item.id: item, Request.id: item}
methods: {List: {all: concat, winners: {total: sum, of: primary, earliest: first, latest: last}}}
known: {lists: [{list: List, id: id}]}
`))
	require.NoError(t, err)
	d := muxtest.New(t, director.Config{Schema: schema, Profile: p, Backends: backends})
	got := &codec.Frame{}
	require.NoError(t, d.Invoke(t.Context(), list.Name, codec.NewFrame(prototest.Marshal(t, list.Input, request)), got))
	return string(dump.Text{}.Append(nil, list.Output, got.Bytes()))
}

// answering is a backend that answers every call, from the cache or not.
type answering struct {
	codec.Caller
	reply  []byte
	cached bool
}

func (a answering) Call(_ context.Context, call *codec.Call) error {
	if a.cached {
		call.Header = metadata.Pairs(backend.HeaderKey, "it")
	}
	call.Reply = codec.NewFrame(bytes.Clone(a.reply))
	return nil
}

func answers(t *testing.T, name, reply string, cached bool) director.Backend {
	_, list := lists(t)
	return director.Backend{Name: name, Conn: codec.Conn{Caller: answering{reply: prototest.Marshal(t, list.Output, reply), cached: cached}}}
}

// The total used to be that of the other backends alone: a list from the cache has items and no total.
func TestASumCountsTheItemsOfACachedList(t *testing.T) {
	assert.Equal(t, `items {id: "a"} items {id: "b"} items {id: "beta.io__c"} earliest: "beta" latest: "beta" total: 3`, askLists(t, "",
		answers(t, "", `items {id: "a"} items {id: "b"}`, true),
		answers(t, "beta.io", `items {id: "c"} total: 1 of: "beta" earliest: "beta" latest: "beta"`, false),
		answers(t, "gamma.io", "", true)))
}

// A list that goes to one backend is not joined. From the cache it had its items, and total 0. What a backend says itself is right.
func TestACachedListOfOneBackendHasItsSum(t *testing.T) {
	const items, live = `items {id: "a"} items {id: "b"}`, `items {id: "a"} items {id: "b"} total: 7 of: "it"`
	primary := answers(t, "", live, false)
	assert.Equal(t, `items {id: "beta.io__a"} items {id: "beta.io__b"} total: 2`, askLists(t, `id: "beta.io__a"`, primary, answers(t, "beta.io", items, true)), "its id is in the request")
	assert.Equal(t, `items {id: "beta.io__a"} items {id: "beta.io__b"} total: 7 of: "it"`, askLists(t, `id: "beta.io__a"`, primary, answers(t, "beta.io", live, false)), "its id is in the request")
	assert.Equal(t, items+" total: 2", askLists(t, "", answers(t, "", items, true)), "it is the only one")
	assert.Equal(t, live, askLists(t, "", primary), "it is the only one")
}
