package memory

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/prototest"
)

const shopProto = `
syntax = "proto3";
package shop;
service Shop {
  rpc List(ListRequest) returns (ListResponse);
  rpc Stream(ListRequest) returns (stream ListResponse);
}
message ListRequest { string id = 1; Colour colour = 2; map<string, string> labels = 3; }
message ListResponse { repeated Item items = 1; }
message Item { string id = 1; Colour colour = 2; map<string, string> labels = 3; }
enum Colour { RED = 0; BLUE = 1; }
`

// shopList is the list of a shop, with an empty memory.
func shopList(t testing.TB) *list {
	shop := prototest.Compile(t, map[string]string{"shop.proto": shopProto}, "shop.proto")
	lists, err := compileLists([]List{{List: "List", Stream: "Stream", ID: "id", Filters: []Filter{
		{Request: "id", Item: "id", Match: "prefix"},
		{Request: "colour", Item: "colour", Match: "equal"},
		{Request: "labels", Item: "labels", Match: "within"},
	}}}, codec.NewSchema(shop), "shop")
	require.NoError(t, err)
	return lists[0]
}

// remember gives l a new Memory.
func remember(l *list) { _ = NewMemory("shop").attach(l) } // an empty one cannot be malformed

// FuzzLists checks that memory has the items of a backend's answer, and that cutting the answer
// into the messages of a stream loses nothing, for any answer and any request. Memory ignores a
// malformed answer.
func FuzzLists(f *testing.F) {
	compiled := shopList(f)
	f.Add([]byte("\x0a\x03\x0a\x017"), []byte("\x0a\x017"), uint16(0))
	f.Add([]byte("\x0a\x0b\x0a\x017\x1a\x06\x0a\x01a\x12\x01b\x0a\x05\x0a\x018\x10\x01"), []byte("\x1a\x06\x0a\x01a\x12\x01b\x10\x01"), uint16(300))
	f.Add([]byte("\x0a\x02\x10\x01\x12\x01x\x0a\x00"), []byte("\x0a\xff"), uint16(9))
	f.Add([]byte("\x0a\x03\x0a\x017\xff"), []byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, reply, request []byte, times uint16) {
		l := *compiled
		remember(&l)
		l.observe(l.begin(), time.Now(), codec.NewFrame(bytes.Clone(reply)))
		l.settle()
		var want []byte // each item, without what else there may be
		var ids []string
		for rest := reply; len(rest) > 0; {
			num, typ, n := protowire.ConsumeField(rest)
			if n < 0 {
				want, ids = nil, nil
				assert.Empty(t, l.items.ids)
				break
			}
			if num == 1 && typ == protowire.BytesType {
				_, _, tag := protowire.ConsumeTag(rest)
				item, _ := protowire.ConsumeBytes(rest[tag:])
				id, _, err := l.id.Lookup(item)
				if err != nil || slices.Contains(ids, string(id)) { // twice: the last one counts
					return
				}
				want, ids = protowire.AppendBytes(protowire.AppendTag(want, 1, protowire.BytesType), item), append(ids, string(id))
			}
			rest = rest[n:]
		}
		require.Equal(t, string(want), string(l.reply(func(string, []byte) bool { return true })))
		if matches, err := l.matcher(request); err == nil {
			part := l.reply(matches)
			again, err := l.parse(part)
			require.NoError(t, err)
			for id, item := range again.all() {
				known, _ := l.items.get(id)
				require.Equal(t, string(known), string(item))
			}
			if l.unfiltered(request) {
				require.Equal(t, string(want), string(part))
			}
		}
		long := bytes.Repeat(want, min(int(times), (3*batch)/max(1, len(want))))
		parts, err := l.split(codec.NewFrame(long))
		require.NoError(t, err)
		require.Equal(t, string(long), string(codec.Concat(parts).Bytes()))
	})
}
