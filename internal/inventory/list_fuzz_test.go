package inventory

import (
	"bytes"
	"slices"
	"testing"
	"time"

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

// shopPlan is that of a shop with one list.
func shopPlan(t testing.TB) *Plan {
	shop := prototest.Compile(t, map[string]string{"shop.proto": shopProto}, "shop.proto")
	plan, err := Compile(Spec{Lists: []List{{List: "List", Stream: "Stream", ID: "id", Filters: []Filter{
		{Request: "id", Item: "id", Match: "prefix"},
		{Request: "colour", Item: "colour", Match: "equal"},
		{Request: "labels", Item: "labels", Match: "within"},
	}}}}, codec.NewSchema(shop), "shop", nil)
	require.NoError(t, err)
	return plan
}

// empty is a list of a plan, in a new Inventory.
func empty(plan *Plan) *Listing {
	inv := New()
	_ = inv.Use(plan) // nothing can be malformed
	return inv.List(plan.Lists[0])
}

// shopList is the list of a shop, of which nothing is known.
func shopList(t testing.TB) *Listing { return empty(shopPlan(t)) }

// list returns l as a client sees it.
func list(l *Listing) string {
	answer, _ := l.inv.View().Answer(l.plan, nil) // there is no filter in it
	return string(answer)
}

// FuzzLists checks that a list has the items of a backend's answer, for any answer and any request. It ignores a malformed
// answer.
func FuzzLists(f *testing.F) {
	plan := shopPlan(f)
	f.Add([]byte("\x0a\x03\x0a\x017"), []byte("\x0a\x017"))
	f.Add([]byte("\x0a\x0b\x0a\x017\x1a\x06\x0a\x01a\x12\x01b\x0a\x05\x0a\x018\x10\x01"), []byte("\x1a\x06\x0a\x01a\x12\x01b\x10\x01"))
	f.Add([]byte("\x0a\x02\x10\x01\x12\x01x\x0a\x00"), []byte("\x0a\xff"))
	f.Add([]byte("\x0a\x03\x0a\x017\xff"), []byte{})
	f.Fuzz(func(t *testing.T, reply, request []byte) {
		l := empty(plan)
		l.Observe(l.inv.Begin(), time.Time{}, codec.NewFrame(bytes.Clone(reply)))
		var want []byte // each item, without what else there may be
		var ids []string
		for rest := reply; len(rest) > 0; {
			num, typ, n := protowire.ConsumeField(rest)
			if n < 0 {
				want, ids = nil, nil
				break
			}
			if num == 1 && typ == protowire.BytesType {
				_, _, tag := protowire.ConsumeTag(rest)
				item, _ := protowire.ConsumeBytes(rest[tag:])
				id, _, err := l.plan.id.Lookup(item)
				if err != nil || slices.Contains(ids, string(id)) { // twice: the last one counts
					return
				}
				want, ids = protowire.AppendBytes(protowire.AppendTag(want, 1, protowire.BytesType), item), append(ids, string(id))
			}
			rest = rest[n:]
		}
		require.Equal(t, string(want), list(l))
		if part, err := l.inv.View().Answer(l.plan, request); err == nil {
			again, err := l.plan.parse(part, 0)
			require.NoError(t, err)
			for id, item := range again.all() {
				known, _ := l.items.get(id)
				require.Equal(t, string(known), string(item))
			}
			if l.plan.Unfiltered(request) {
				require.Equal(t, string(want), string(part))
			}
		}
	})
}
