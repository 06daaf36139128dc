package calls_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// leg returns a leg that has ended; number 0 is the client's.
func leg(number int, backend string, code codes.Code, requests, replies calls.Messages) *calls.Leg {
	return &calls.Leg{Number: number, Backend: backend, Method: muxtest.Method("List"), Ended: true, Code: code, Requests: requests, Replies: replies}
}

func called(legs ...*calls.Leg) *calls.Call {
	return &calls.Call{Method: legs[0].Method, Ended: true, Code: legs[0].Code, Message: legs[0].Message, Legs: legs}
}

// books returns messages that list a book each.
func books(ids ...string) (ms calls.Messages) {
	for _, id := range ids {
		b := muxtest.Bytes("ListResponse", `books {id: "`+id+`"}`).Bytes()
		ms.Kept = append(ms.Kept, calls.Message{Payload: b, Size: len(b)})
		ms.Count++
	}
	return ms
}

// changed returns the changes of a call as the Printer shows them, to people and to programs.
func changed(t *testing.T, c *calls.Call) (text, asJSON string) {
	t.Helper()
	var out bytes.Buffer
	p := &calls.Printer{Out: &out, Schema: muxtest.Library, Changes: true, Order: order}
	p.Print(c)
	_, text, _ = strings.Cut(out.String(), "\n")
	out.Reset()
	p.JSON = true
	p.Print(c)
	var of struct {
		Changes json.RawMessage `json:"changes"`
		Gaps    json.RawMessage `json:"not_compared"`
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &of))
	return text, string(of.Changes) + string(of.Gaps)
}

func TestTruncatedMessagesAreReportedAsGaps(t *testing.T) {
	cut := calls.Messages{Count: 2, Kept: []calls.Message{{Payload: []byte("\x0a\x05"), Size: 3 << 20, Truncated: true}, {Size: 3 << 20, Truncated: true}}}
	secret := calls.Messages{Count: 1, Kept: []calls.Message{{Size: 9, Truncated: true, Redacted: true}}}
	none := calls.Messages{}
	with := func(a, b calls.Messages) calls.Messages {
		return calls.Messages{Count: a.Count + b.Count, Kept: append(a.Kept, b.Kept...)}
	}
	const notKept = "a message was not kept completely; record with a larger -flight-recorder"
	for name, c := range map[string]struct {
		call         *calls.Call
		text, asJSON string
	}{
		"request": {
			called(leg(0, "", codes.OK, cut, none), leg(1, "beta.io", codes.OK, cut, none)),
			"    > not compared, to beta.io: " + notKept + "\n",
			`[{"backend":"beta.io","way":"request","why":"` + notKept + `"}]`,
		},
		"reply, with other changes": {
			called(leg(0, "", codes.OK, none, with(books("beta.io__7f"), cut)), leg(1, "beta.io", codes.OK, none, with(books("7f"), cut))),
			"    < books[0].id, from beta.io\n        - \"7f\"\n        + \"beta.io__7f\"\n    < not compared, from beta.io: " + notKept + "\n",
			`[{"backend":"beta.io","way":"reply","path":"books[0].id","before":"\"7f\"","after":"\"beta.io__7f\""}][{"backend":"beta.io","way":"reply","why":"` + notKept + `"}]`,
		},
		"merged reply": {
			called(leg(0, "", codes.OK, none, books("1")), leg(1, "primary", codes.OK, none, books("1")), leg(2, "beta.io", codes.OK, none, cut)),
			"    < not compared: " + notKept + "\n",
			`[{"way":"reply","why":"` + notKept + `"}]`,
		},
		"left out": {
			called(leg(0, "", codes.OK, none, secret), leg(1, "beta.io", codes.OK, none, secret)),
			"    < not compared, from beta.io: a malformed message was not recorded, because it may hold secrets; record with -unsafe-raw\n",
			`[{"backend":"beta.io","way":"reply","why":"a malformed message was not recorded, because it may hold secrets; record with -unsafe-raw"}]`,
		},
		"as many did not go on": {
			called(leg(0, "", codes.OK, none, books("1", "2")), leg(1, "primary", codes.OK, none, books("1", "2", "3"))),
			"    < not compared, from primary: 3 messages were received, and 2 sent on\n",
			`[{"backend":"primary","way":"reply","why":"3 messages were received, and 2 sent on"}]`,
		},
		"without a beginning": {
			&calls.Call{Partial: true, Ended: true, Legs: []*calls.Leg{leg(0, "", codes.OK, none, none)}},
			"    not compared: the beginning of the call was not kept; record with a larger -flight-recorder\n",
			`[{"why":"the beginning of the call was not kept; record with a larger -flight-recorder"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, asJSON := changed(t, c.call)
			assert.Equal(t, c.text, text)
			assert.Equal(t, c.asJSON, asJSON)
		})
	}
}

func TestADifferentStatusIsAChange(t *testing.T) {
	none := calls.Messages{}
	front, back := leg(0, "", codes.Unavailable, none, none), leg(1, "beta.io", codes.DeadlineExceeded, none, books("1"))
	front.Message, back.Message = "criproxy: beta.io is\ndown", "too late"
	text, asJSON := changed(t, called(front, back))
	assert.Equal(t, "    < status, from beta.io\n        - DeadlineExceeded: too late\n        + Unavailable: criproxy: beta.io is down\n", text)
	assert.Equal(t, `[{"backend":"beta.io","way":"status","path":"","before":"DeadlineExceeded: too late","after":"Unavailable: criproxy: beta.io is\ndown"}]`, asJSON)

	back.Code = front.Code
	text, _ = changed(t, called(front, back))
	assert.Contains(t, text, "- Unavailable: too late", "the message counts, not only the code")

	back.Ended = false
	text, _ = changed(t, called(front, back))
	assert.Contains(t, text, "- under way")
}

func TestAClientThatLeavesIsNotAChange(t *testing.T) {
	none := calls.Messages{}
	front, stream, aside := leg(0, "", codes.Canceled, none, none), leg(1, "primary", codes.OK, none, none), leg(2, "primary", codes.OK, none, none)
	stream.Ended, aside.Method = false, muxtest.Method("Get")
	_, asJSON := changed(t, called(front, stream, aside))
	assert.NotContains(t, asJSON, "status")
}

// A backend may stream a list that the client requested as one message.
func TestAStreamedListIsComparedWithAWholeOne(t *testing.T) {
	whole := books("1")
	whole.Kept[0].Payload = append(whole.Kept[0].Payload, books("2").Kept[0].Payload...)
	text, _ := changed(t, called(leg(0, "", codes.OK, calls.Messages{}, whole), leg(1, "primary", codes.OK, calls.Messages{}, books("1", "2"))))
	assert.Equal(t, "    passed unchanged\n", text)
}
