package calls_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// criproxy's own lists, and those of a node with native ids, have ids without a prefix: the page took all their pods for
// the primary's. Issue 43.
func TestAnItemOfAListIsOnTheBackendThatListedIt(t *testing.T) {
	leg := func(number int, backend, reply string) *calls.Leg {
		return &calls.Leg{Number: number, Backend: backend, Replies: calls.Messages{Kept: []calls.Message{{Payload: []byte(reply)}}}}
	}
	item := calls.About{IDs: []string{"7f"}}
	cached := func(names ...string) *calls.Leg {
		return &calls.Leg{Header: metadata.MD{"criproxy-last-known": names}}
	}
	for name, one := range map[string]struct {
		call calls.Call
		want string
	}{
		"criproxy's own list":       {calls.Call{Own: true, Legs: []*calls.Leg{leg(1, "beta.io", "7f")}}, "beta.io"},
		"a merged list":             {calls.Call{Legs: []*calls.Leg{leg(1, "primary", "9a"), leg(2, "beta.io", "7f")}}, "beta.io"},
		"only a cache has it":       {calls.Call{Legs: []*calls.Leg{cached("beta.io"), leg(1, "primary", "9a")}}, "beta.io"},
		"a cache, but not of it":    {calls.Call{Legs: []*calls.Leg{cached("beta.io"), leg(1, "primary", "7f")}}, "primary"},
		"the cache of one of two":   {calls.Call{Legs: []*calls.Leg{cached("beta.io", "gamma.io"), leg(1, "primary", "9a")}}, ""},
		"a reply that is not whole": {calls.Call{Legs: []*calls.Leg{cached("beta.io"), {Number: 1, Backend: "primary", Replies: calls.Messages{Kept: []calls.Message{{Truncated: true}}}}}}, ""},
	} {
		assert.Equal(t, one.want, one.call.HomeOf(item), name)
	}
}

// A page showed pods of one runtime on another one that had pods with the same ids, as two demos have.
func TestAnItemIsOnTheBackendOfItsPrefix(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	books := func(text string) *codec.Frame { return muxtest.Frame(t, "ListResponse", text) }
	ctx, front := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true})
	for name, listed := range map[string]string{"beta.io": `books {id: "7f" title: "Tale"}`, "primary": `books {id: "7f" title: "Fact"}`, "beta": `books {id: "7f" title: "Ode"}`} {
		_, leg := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("List"), Backend: name})
		leg.Reply(books(listed))
		leg.End(nil, nil)
	}
	front.Reply(books(`books {id: "beta.io__7f" title: "Tale"} books {id: "7f" title: "Fact"} books {id: "beta__7f" title: "Ode"}`))
	front.End(nil, nil)
	rec.Close()
	a := calls.NewAssembler(muxtest.Library, names{})
	a.Lists = true
	homes := map[string]string{}
	for f := rec.Follow(true); ; {
		var ev capture.Event
		if f.Next(t.Context(), &ev) != nil {
			break
		}
		if c, what := a.Add(&ev); what == calls.Done {
			for _, item := range c.Listed {
				homes[item.Pod] = c.HomeOf(item)
			}
		}
	}
	assert.Equal(t, map[string]string{"Tale": "beta.io", "Fact": "primary", "Ode": "beta"}, homes)
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
