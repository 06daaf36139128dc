package calls_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// criproxy's own lists, and those of a node with native ids, have ids without a prefix: the page took all their pods for
// the primary's. Issue 43.
func TestAnItemOfAListIsOnTheBackendThatListedIt(t *testing.T) {
	leg := func(number int, backend, reply string) *calls.Leg {
		return &calls.Leg{Number: number, Backend: backend, Replies: calls.Messages{Kept: []calls.Message{{Payload: []byte(reply)}}}}
	}
	item := calls.About{IDs: []string{"7f"}}
	memory := func(names ...string) *calls.Leg {
		return &calls.Leg{Header: metadata.MD{"criproxy-last-known": names}}
	}
	for name, one := range map[string]struct {
		call calls.Call
		want string
	}{
		"criproxy's own list":       {calls.Call{Own: true, Legs: []*calls.Leg{leg(1, "beta.io", "7f")}}, "beta.io"},
		"a merged list":             {calls.Call{Legs: []*calls.Leg{leg(1, "primary", "9a"), leg(2, "beta.io", "7f")}}, "beta.io"},
		"only memory has it":        {calls.Call{Legs: []*calls.Leg{memory("beta.io"), leg(1, "primary", "9a")}}, "beta.io"},
		"memory, but not of it":     {calls.Call{Legs: []*calls.Leg{memory("beta.io"), leg(1, "primary", "7f")}}, "primary"},
		"the memory of one of two":  {calls.Call{Legs: []*calls.Leg{memory("beta.io", "gamma.io"), leg(1, "primary", "9a")}}, ""},
		"a reply that is not whole": {calls.Call{Legs: []*calls.Leg{memory("beta.io"), {Number: 1, Backend: "primary", Replies: calls.Messages{Kept: []calls.Message{{Truncated: true}}}}}}, ""},
	} {
		assert.Equal(t, one.want, one.call.HomeOf(item), name)
	}
}

func TestBackendsOfACallAreInOneOrder(t *testing.T) {
	legs := func(names ...string) *calls.Call {
		c := &calls.Call{}
		for i, name := range names {
			c.Legs = append(c.Legs, &calls.Leg{Number: i + 1, Backend: name})
		}
		return c
	}
	want := []string{"primary", "alpha.io", "beta.io"}
	assert.Equal(t, want, legs("beta.io", "primary", "alpha.io", "primary").Backends())
	assert.Equal(t, want, legs("alpha.io", "beta.io", "primary").Backends())
}

func TestARefusedCallIsOfTheBackendThatRefusedIt(t *testing.T) {
	c := &calls.Call{Ended: true, Code: codes.Unavailable, Message: "criproxy: backend beta.io is gone since 03:04:05: connection refused"}
	assert.Equal(t, []string{"beta.io"}, c.Meant())
	assert.True(t, (&calls.Filter{Backend: "beta*"}).Match(c))
	var out bytes.Buffer
	p := calls.Printer{Out: &out}
	p.Print(c)
	assert.Regexp(t, ` beta\.io +\S+ +Unavailable`, out.String())
	c.Message = "the runtime's own words"
	assert.Empty(t, c.Meant())
}
