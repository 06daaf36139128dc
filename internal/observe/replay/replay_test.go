package replay_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestReplayOnAnotherServerDiffersInNothingButNames(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	session(t, serve(t, newLibrary("old").handle), rec)
	calls := load(t, false, rec)
	require.Len(t, calls, 12)

	other := newLibrary("another")
	sum, changes := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, other.handle))})
	assert.Empty(t, changes)
	assert.Equal(t, replay.Summary{Same: 12}, sum)
	all := strings.Join(other.seen, "\n")
	assert.Contains(t, all, "another-0000000000-2", "the new names were sent")
	assert.NotContains(t, all, "old-")
}

func TestReplayShowsEachFieldThatDiffers(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	session(t, serve(t, newLibrary("old").handle), rec)
	calls := load(t, false, rec)

	other := newLibrary("another")
	other.title = func(s string) string { return strings.Replace(s, "Tale 1", "Story 1", 1) }
	_, changes := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, other.handle))})
	assert.Equal(t, []string{`Put title: "Tale 1" -> "Story 1"`, `Get title: "Tale 1" -> "Story 1"`}, changes)

	sum, changes := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, newLibrary("another").handle)),
		Volatile: func(fd protoreflect.FieldDescriptor) bool { return fd.Name() == "title" }})
	assert.Empty(t, changes)
	assert.Equal(t, 12, sum.Same)

	_, changes = play(t, replay.Config{Calls: calls, Settle: time.Millisecond, Conn: muxtest.Connect(t, serve(t, muxtest.Unary(
		func(context.Context, string, *codec.Frame) (*codec.Frame, error) { return &codec.Frame{}, nil })))})
	assert.Contains(t, changes, `Get status: NotFound: no book "nobody's" -> OK`)
	assert.Contains(t, changes, `Put title: removed "Tale 0"`)
}

func TestJoinedRecordingsReplayOneAfterTheOther(t *testing.T) {
	one, two := capture.NewRecorder(capture.Config{}), capture.NewRecorder(capture.Config{})
	session(t, serve(t, newLibrary("old").handle), one)
	session(t, serve(t, newLibrary("other").handle), two)
	calls := load(t, false, one, two)
	require.Len(t, calls, 24)
	for i, c := range calls[:12] {
		again := calls[12+i]
		assert.Equal(t, c.Method, again.Method)
		assert.Len(t, again.Requests, len(c.Requests))
		assert.Len(t, again.Replies, len(c.Replies))
		assert.LessOrEqual(t, c.Finished, calls[12].Began)
	}
}

// call is a recorded call that took from one time to another.
func call(method string, id uint64, began, finished time.Duration) *replay.Call {
	return &replay.Call{ID: id, Method: muxtest.Method(method), Began: began, Finished: finished, Ended: true,
		Requests: []replay.Message{{Payload: muxtest.Bytes("PutRequest", fmt.Sprintf("shelf: '%d'", id)).Bytes(), When: began}},
		Replies:  []replay.Message{{When: finished}}}
}

func TestReplayKeepsTheOrderAndWhatWentOnAtOnce(t *testing.T) {
	var mu sync.Mutex
	var order []string
	both := make(chan struct{})
	now := 0
	h := muxtest.Unary(func(ctx context.Context, _ string, request *codec.Frame) (*codec.Frame, error) {
		shelf := fields(request, "PutRequest").Get(muxtest.Message("PutRequest").Fields().ByName("shelf")).String()
		mu.Lock()
		order = append(order, shelf)
		if now++; now == 3 {
			close(both)
		}
		mu.Unlock()
		if shelf == "2" || shelf == "3" { // each is answered when the other is there
			select {
			case <-both:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return &codec.Frame{}, nil
	})
	calls := []*replay.Call{
		call("Put", 1, 0, time.Hour),
		call("Put", 2, 2*time.Hour, 4*time.Hour), call("Put", 3, 3*time.Hour, 5*time.Hour),
		call("Put", 4, 6*time.Hour, 7*time.Hour),
	}
	sum, changes := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, h))}) // speed 0: the hours are not waited for
	assert.Empty(t, changes)
	assert.Equal(t, 4, sum.Same)
	require.Len(t, order, 4)
	assert.Equal(t, "1", order[0])
	assert.Equal(t, "4", order[3])

	began := time.Now()
	order, now, both = nil, 0, make(chan struct{})
	play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, h)), Speed: 6 * 3600 * 5}) // six hours in 0.2s
	assert.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
}

func TestTimesThatGoBackHoldUpNothing(t *testing.T) {
	method := muxtest.Method("Put")
	head := fmt.Sprintf(`{"kind":"file","v":%d,"created":"2026-01-01T00:00:00Z"}`+"\n", capture.Version)
	event := func(kind string, call int, when time.Duration, rest string) string {
		return fmt.Sprintf(`{"kind":%q,"call":%d,"mono_ns":%d,"time":"2026-01-01T00:00:00Z","method":%q%s}`+"\n", kind, call, when, method, rest)
	}
	var file strings.Builder
	file.WriteString(head)
	for i, at := range []time.Duration{5, 1, 9} {
		file.WriteString(event("start", i+1, at, "") + event("request", i+1, at, "") + event("reply", i+1, at-1, "") + event("end", i+1, 0, `,"code":"OK"`))
	}
	r, err := capture.NewReader(strings.NewReader(file.String()))
	require.NoError(t, err)
	calls, err := replay.Load(r, "")
	require.NoError(t, err)
	sum, _ := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, newLibrary("").handle))})
	assert.Equal(t, 3, sum.Same+sum.Different)
}

func TestReplayReportsWhatItCannotSend(t *testing.T) {
	partial, cut := call("Put", 1, 0, 1), call("Put", 2, 2, 3)
	partial.Partial, cut.Requests[0].Truncated = true, true
	sum, changes := play(t, replay.Config{Calls: []*replay.Call{partial, cut}, Conn: muxtest.Connect(t, serve(t, newLibrary("").handle))})
	assert.Equal(t, replay.Summary{NotSent: 2}, sum)
	assert.Equal(t, []string{"not sent: it began before the capture did", "not sent: the end of its request was not recorded; record with a larger -flight-recorder"}, changes)
}

func TestReplayTakesTurnsOnAStreamAsRecorded(t *testing.T) {
	page := func(text string, when time.Duration) replay.Message {
		return replay.Message{Payload: muxtest.Bytes("Page", fmt.Sprintf("text: %q", text)).Bytes(), When: when}
	}
	chat := &replay.Call{ID: 1, Method: muxtest.Method("Chat"), Ended: true, Finished: 9,
		Requests: []replay.Message{page("one", 1), page("two", 3)}, Replies: []replay.Message{page("one", 2), page("two", 4)}}
	var order []string
	h := func(_ string, s grpc.ServerStream) error {
		for {
			f := &codec.Frame{}
			if s.RecvMsg(f) != nil {
				return nil
			}
			order = append(order, muxtest.Text("Page", f))
			if err := s.SendMsg(f); err != nil {
				return err
			}
		}
	}
	sum, changes := play(t, replay.Config{Calls: []*replay.Call{chat}, Conn: muxtest.Connect(t, serve(t, h))})
	assert.Empty(t, changes)
	assert.Equal(t, 1, sum.Same)
	assert.Equal(t, []string{`text: "one"`, `text: "two"`}, order)

	// The same by the fixture: it says nothing before the client has.
	f := replay.NewFixture(replay.FixtureConfig{Calls: []*replay.Call{chat}, Schema: muxtest.Library})
	sum, changes = play(t, replay.Config{Calls: []*replay.Call{chat}, Conn: muxtest.Connect(t, serve(t, fixtureHandler(f)))})
	assert.Empty(t, changes)
	assert.Equal(t, 1, sum.Same)
}

func TestSecretsAreSentAsStarsAndComparedAsSuch(t *testing.T) {
	secrets := dump.Secrets{Field: func(fd protoreflect.FieldDescriptor) bool { return fd.FullName() == "library.v1.Book.title" }}
	redact := capture.NewRedactor(muxtest.Library, secrets)
	rec := capture.NewRecorder(capture.Config{Redact: redact})
	session(t, serve(t, newLibrary("old").handle), rec)
	calls := load(t, true, rec)
	other := newLibrary("another")
	sum, changes := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, other.handle)), Redact: redact, Text: secrets.Text()})
	assert.Empty(t, changes)
	assert.Equal(t, replay.Summary{Same: 12, Redacted: 3}, sum)
	assert.Contains(t, strings.Join(other.seen, ""), "******")
}

func TestAStreamWithoutAnEndEndsWithTheRest(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	session(t, serve(t, newLibrary("old").handle), rec)
	calls := load(t, false, rec)
	silent := newLibrary("another")
	h := func(method string, s grpc.ServerStream) error { // its events never come
		if method == muxtest.Method("Stream") {
			<-s.Context().Done()
			return nil
		}
		return silent.handle(method, s)
	}
	_, changes := play(t, replay.Config{Calls: calls, Conn: muxtest.Connect(t, serve(t, h)), Settle: time.Millisecond})
	require.Len(t, changes, 3)
	assert.Equal(t, `Stream message 1: removed {books {id: "old-0000000000-0"}}`, changes[0])
}

func TestAServerThatIsGoneIsADifference(t *testing.T) {
	cc := muxtest.Connect(t, muxtest.Dir(t)+"/nobody")
	_, changes := play(t, replay.Config{Calls: []*replay.Call{call("Put", 1, 0, 1)}, Conn: cc})
	require.NotEmpty(t, changes)
	assert.Contains(t, changes[0], "Put status: OK -> "+codes.Unavailable.String())
}
