package director_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

var kinds = []struct {
	method string // of every kind, in the schema and not
	desc   grpc.StreamDesc
}{
	{muxtest.Method("Get"), grpc.StreamDesc{}},
	{muxtest.Method("Stream"), grpc.StreamDesc{ServerStreams: true}},
	{muxtest.Method("Upload"), grpc.StreamDesc{ClientStreams: true}},
	{muxtest.Method("Chat"), grpc.StreamDesc{ClientStreams: true, ServerStreams: true}},
	{"/other.Service/Unknown", grpc.StreamDesc{ClientStreams: true, ServerStreams: true}},
}

// outcome is all that a client can see of a call.
type outcome struct {
	replies         []string
	header, trailer metadata.MD
	err             string
	details         int
}

// do makes a call in any of the kinds.
func do(t testing.TB, cc *grpc.ClientConn, method string, desc grpc.StreamDesc, requests ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-1-2-01", "blob-bin", "\x00\xff")
	cs, err := cc.NewStream(ctx, &desc, method)
	require.NoError(t, err)
	for _, r := range requests {
		if err := cs.SendMsg(codec.NewFrame([]byte(r))); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	require.NoError(t, cs.CloseSend())
	var o outcome
	o.header, _ = cs.Header()
	for {
		reply := &codec.Frame{}
		err := cs.RecvMsg(reply)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				o.err = err.Error()
				o.details = len(status.Convert(err).Details())
			}
			o.trailer = cs.Trailer()
			return o
		}
		o.replies = append(o.replies, string(reply.Bytes()))
	}
}

// open opens a stream, and sends an empty message.
func open(t testing.TB, ctx context.Context, cc grpc.ClientConnInterface, desc *grpc.StreamDesc, method string) grpc.ClientStream {
	t.Helper()
	cs, err := cc.NewStream(ctx, desc, method)
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(&codec.Frame{}))
	return cs
}

// anything is a server that answers with what it got: metadata, deadline and messages. It ends the call as
// the first message says.
func anything(_ string, stream grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	_, hasDeadline := stream.Context().Deadline()
	said := fmt.Sprintf("%q %q %q %t", md["traceparent"], md["blob-bin"], md[":authority"], hasDeadline)
	first := &codec.Frame{}
	if err := stream.RecvMsg(first); err != nil {
		return err
	}
	how := string(first.Bytes())
	rest := 0
	for stream.RecvMsg(&codec.Frame{}) == nil {
		rest++
	}
	if err := stream.SetHeader(metadata.Pairs("x-header", said, "x-bin", "\x01\xfe")); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("x-trailer", "one", "x-trailer", "two"))
	if strings.Contains(how, "reply") {
		for range 3 {
			if err := stream.SendMsg(codec.NewFrame([]byte(fmt.Sprintf("\x12%c%s%02d", len(how)+2, how, rest)))); err != nil {
				return err
			}
			if !strings.Contains(how, "many") {
				break
			}
		}
	}
	if strings.Contains(how, "fail") {
		detail, err := anypb.New(wrapperspb.String("detail"))
		if err != nil {
			return err
		}
		return status.FromProto(&spb.Status{Code: int32(codes.FailedPrecondition), Message: "RegistryUnavailable: é\n\"%", Details: []*anypb.Any{detail}}).Err()
	}
	return nil
}

func TestACallThroughTheDirectorIsAsOneToTheBackend(t *testing.T) {
	dir := muxtest.Dir(t)
	backend := muxtest.Backend(t, dir+"/backend.sock", "", anything)
	for i, profile := range []*director.Profile{nil, muxtest.LibraryProfile(t), endlessProfile(t)} {
		d := muxtest.New(t, director.Config{Profile: profile, Schema: muxtest.Library, Backends: []director.Backend{backend}})
		front := muxtest.Connect(t, muxtest.ServeDirector(t, fmt.Sprintf("%s/mux%d.sock", dir, i), d), grpc.WithAuthority("localhost"))
		direct := muxtest.Connect(t, dir+"/backend.sock", grpc.WithAuthority("localhost"))

		for _, kind := range kinds {
			// Each is a valid message: field 2 with 0x12, and an instruction to the server.
			hows := []string{"reply", "fail"} // the instructions for a call with one reply
			if kind.desc.ServerStreams {
				hows = append(hows, "reply,fail", "reply,many", "reply,many,fail", "nothing")
			}
			for _, how := range hows {
				t.Run(fmt.Sprintf("profile=%t%s/%s", profile != nil, kind.method, how), func(t *testing.T) {
					requests := []string{"\x12" + string(rune(len(how))) + how}
					if kind.desc.ClientStreams {
						requests = append(requests, "\x12\x01a", "\x12\xff\x01"+strings.Repeat("b", 255), "")
					}
					want := do(t, direct, kind.method, kind.desc, requests...)
					got := do(t, front, kind.method, kind.desc, requests...)
					assert.Equal(t, want, got)
					assert.NotEmpty(t, want.trailer["x-trailer"])
					assert.Equal(t, strings.Contains(how, "reply"), len(want.replies) > 0, "%+v", want)
				})
			}
		}
	}
}

// The backend's request may have another length than the client's. Some runtimes refuse a body
// that is not as long as its header says.
func TestABackendIsNotToldTheLengthOfTheRequest(t *testing.T) {
	got := make(chan metadata.MD, 1)
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, func(_ string, stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		got <- md
		return stream.SendMsg(&codec.Frame{})
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "content-length", "7", "traceparent", "00-1-2-01")
	require.NoError(t, cc.Invoke(ctx, muxtest.Method("Get"), &codec.Frame{}, &codec.Frame{}))
	md := <-got
	assert.Empty(t, md["content-length"])
	assert.Equal(t, []string{"00-1-2-01"}, md["traceparent"])
}

func TestAHeaderComesBeforeTheFirstMessage(t *testing.T) {
	for _, kind := range kinds {
		if !kind.desc.ServerStreams {
			continue
		}
		for name, backends := range map[string]int{"one backend": 1, "two": 2} {
			t.Run(kind.method+"/"+name, func(t *testing.T) {
				if kind.desc.ClientStreams {
					muxtest.SkipOverGRPC(t, muxtest.HeaderFirst)
				}
				release := make(chan struct{})
				h := func(_ string, stream grpc.ServerStream) error {
					if err := stream.SendHeader(metadata.Pairs("x-header", "early")); err != nil {
						return err
					}
					<-release
					return nil
				}
				cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, []muxtest.Handler{h, h}[:backends]...)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				cs := open(t, ctx, cc, &kind.desc, kind.method)
				header, err := cs.Header() // blocks until the header comes
				require.NoError(t, err)
				assert.Equal(t, []string{"early"}, header["x-header"])
				close(release)
				require.NoError(t, cs.CloseSend())
				assert.ErrorIs(t, cs.RecvMsg(&codec.Frame{}), io.EOF)
			})
		}
	}
}

// due is a context whose deadline passes when the test says so.
type due struct {
	context.Context
	passed <-chan struct{}
}

func (due) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

func (d due) Done() <-chan struct{} { return d.passed }

func (d due) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return d.Context.Err()
	}
}

func TestTheDeadlineAndTheEndOfAClientReachTheBackends(t *testing.T) {
	for _, kind := range kinds {
		for _, how := range []string{"deadline", "cancel"} {
			t.Run(kind.method+"/"+how, func(t *testing.T) {
				started, ended := make(chan bool, 2), make(chan error, 2)
				hang := func(_ string, stream grpc.ServerStream) error {
					_, hasDeadline := stream.Context().Deadline()
					started <- hasDeadline
					<-stream.Context().Done()
					ended <- stream.Context().Err()
					return stream.Context().Err()
				}
				cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, hang, hang)
				ctx, end := context.WithCancel(t.Context())
				if how == "deadline" {
					passed := make(chan struct{})
					ctx, end = due{t.Context(), passed}, sync.OnceFunc(func() { close(passed) })
				}
				defer end()
				cs := open(t, ctx, cc, &kind.desc, kind.method)
				assert.Equal(t, how == "deadline", <-started)
				end()
				select {
				case <-ended:
				case <-time.After(30 * time.Second):
					require.Fail(t, "the call goes on at the backend")
				}
				err := cs.RecvMsg(&codec.Frame{})
				assert.Equal(t, map[string]codes.Code{"deadline": codes.DeadlineExceeded, "cancel": codes.Canceled}[how], status.Code(err))
			})
		}
	}
}

func TestAStreamWithAChoiceGoesToItsOwner(t *testing.T) {
	chat := func(name string) muxtest.Handler {
		return func(method string, stream grpc.ServerStream) error {
			if method == muxtest.Method("List") { // the director lists to find the owner of a name
				return shelf("")(method, stream)
			}
			for {
				page := &codec.Frame{}
				if err := stream.RecvMsg(page); err != nil {
					return nil // the client has sent all its messages
				}
				text := fmt.Sprintf("%s got %s", name, muxtest.Text("Page", page))
				if err := stream.SendMsg(muxtest.Bytes("Page", fmt.Sprintf("book_id: '7f' text: %q", text))); err != nil {
					return err
				}
			}
		}
	}
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, chat("primary"), chat("beta"))
	cs, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, muxtest.Method("Chat"))
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, cs.SendMsg(muxtest.Frame(t, "Page", `book_id: "beta.io__1"`)))
		reply := &codec.Frame{}
		require.NoError(t, cs.RecvMsg(reply))
		muxtest.EqualProto(t, "Page", `book_id: "beta.io__7f" text: 'beta got book_id: "1"'`, reply)
	}
	require.NoError(t, cs.CloseSend())
	assert.ErrorIs(t, cs.RecvMsg(&codec.Frame{}), io.EOF)

	o := do(t, cc, muxtest.Method("Chat"), grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		string(muxtest.Bytes("Page", `book_id: "omega.io__1"`).Bytes()), "")
	assert.Equal(t, `rpc error: code = NotFound desc = criproxy: Chat: book "omega.io__1": no backend has that prefix; the backends are the primary (which has no name), beta.io`, o.err,
		"grpc-proxy would make it Internal, if a send failed with it")

	o = do(t, cc, muxtest.Method("Chat"), grpc.StreamDesc{ClientStreams: true, ServerStreams: true})
	assert.Empty(t, o.err, "a client that sends nothing is the primary's")
}

// pages sends List responses with the ids it is given, one a message.
func pages(end error, ids ...string) muxtest.Handler {
	return func(_ string, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		for _, id := range ids {
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {id: %q}", id))); err != nil {
				return err
			}
		}
		stream.SetTrailer(metadata.Pairs("x-count", fmt.Sprint(len(ids))))
		return end
	}
}

var serverStream = grpc.StreamDesc{ServerStreams: true}

func TestMergedStreamHasEveryItemOnceAndEnds(t *testing.T) {
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)},
		pages(nil, "1", "2", "3"), pages(nil), pages(nil, "1", "4"))
	o := do(t, cc, muxtest.Method("Stream"), serverStream, "")
	require.Empty(t, o.err)
	var got []string
	for _, r := range o.replies {
		got = append(got, muxtest.Text("ListResponse", codec.NewFrame([]byte(r))))
	}
	assert.ElementsMatch(t, []string{
		`books {id: "1"}`, `books {id: "2"}`, `books {id: "3"}`,
		`books {id: "gamma.io__1"}`, `books {id: "gamma.io__4"}`,
	}, got)
	assert.Equal(t, []string{"3", "0", "2"}, o.trailer["x-count"], "trailers are joined in backend order")

	o = do(t, cc, muxtest.Method("Stream"), serverStream, string(muxtest.Bytes("ListRequest", `book_id: "gamma.io__1"`).Bytes()))
	assert.Len(t, o.replies, 2, "a filter narrows a stream as it narrows a list")
	o = do(t, cc, muxtest.Method("Stream"), serverStream, string(muxtest.Bytes("ListRequest", `book_id: "gamma"`).Bytes()))
	assert.Len(t, o.replies, 5, "what begins so may be the primary's or gamma.io's")
	o = do(t, cc, muxtest.Method("Stream"), serverStream, string(muxtest.Bytes("ListRequest", `book_id: "gamma.io__1" lender_id: "1"`).Bytes()))
	assert.Empty(t, o.replies)
	assert.Empty(t, o.err)
}

func TestMergedStreamFailsWithTheFirstFailure(t *testing.T) {
	hang := func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done() // the director must cancel the call
		return stream.Context().Err()
	}
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)},
		hang, pages(status.Error(codes.DataLoss, "burnt"), "1"), hang)
	o := do(t, cc, muxtest.Method("Stream"), serverStream, "")
	assert.Equal(t, "rpc error: code = DataLoss desc = burnt", o.err)
	assert.Equal(t, []string{"1"}, o.trailer["x-count"])
}

func TestASlowClientSlowsTheBackends(t *testing.T) {
	const size = 1 << 20
	sent := make(chan int, 1000)
	flood := func(_ string, stream grpc.ServerStream) error {
		f := muxtest.Bytes("ListResponse", fmt.Sprintf("books {title: %q}", strings.Repeat("x", size)))
		for i := range 1000 {
			if err := stream.SendMsg(f); err != nil {
				return err
			}
			sent <- i
		}
		return nil
	}
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, flood, flood)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cs := open(t, ctx, cc, &serverStream, muxtest.Method("Stream"))
	require.NoError(t, cs.RecvMsg(&codec.Frame{}))
	held := 0
	for quiet := false; !quiet; { // until nothing moves any more
		select {
		case <-sent:
			held++
		case <-time.After(time.Second):
			quiet = true
		}
	}
	assert.Less(t, held, 30, "messages of 1 MiB that the backends could send while the client reads nothing")
	require.NoError(t, cs.RecvMsg(&codec.Frame{}))
}

func TestAnUnknownListIsNotThePrimarysPartOfIt(t *testing.T) {
	profile := muxtest.LibraryProfile(t)
	profile.Unimplemented = []string{"List*"}
	unknown := func(name string, backends ...muxtest.Handler) codes.Code {
		cc := muxtest.Mux(t, director.Config{Profile: profile}, backends...)
		var answers []codes.Code
		for _, desc := range []grpc.StreamDesc{{}, serverStream} {
			o := do(t, cc, name, desc, "")
			code := codes.OK
			if o.err != "" {
				require.Contains(t, o.err, "code = Unimplemented desc = criproxy: ListScrolls: criproxy's description of this API does not have this method")
				code = codes.Unimplemented
			}
			answers = append(answers, code)
		}
		assert.Equal(t, answers[0], answers[1])
		return answers[0]
	}
	list := muxtest.Method("ListScrolls")
	assert.Equal(t, codes.Unimplemented, unknown(list, pages(nil, "1"), pages(nil, "2")))
	assert.Equal(t, codes.OK, unknown(list, pages(nil, "1")), "of one backend it is all there is")
	assert.Equal(t, codes.OK, unknown(muxtest.Method("BurnScrolls"), pages(nil, "1"), pages(nil, "2")), "it is no list")
	assert.Equal(t, codes.OK, unknown("/another.Library/ListScrolls", pages(nil, "1"), pages(nil, "2")), "of another API")
}
