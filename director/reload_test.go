package director_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestReloadKeepsCallsUnderWayOnTheirBackends(t *testing.T) {
	dir := muxtest.Dir(t)
	release := make(chan struct{})
	slow := func(name string) muxtest.Handler {
		return func(_ string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			if err := stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {title: %q}", name))); err != nil {
				return err
			}
			<-release
			return stream.SendMsg(muxtest.Bytes("ListResponse", fmt.Sprintf("books {title: '%s again'}", name)))
		}
	}
	older, newer := muxtest.Backend(t, filepath.Join(dir, "old"), "", slow("old")), muxtest.Backend(t, filepath.Join(dir, "new"), "", slow("new"))
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library, Backends: []director.Backend{older}}
	d := muxtest.New(t, cfg)
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d))

	first := func(cs grpc.ClientStream) string {
		reply := &codec.Frame{}
		require.NoError(t, cs.RecvMsg(reply))
		return muxtest.Text("ListResponse", reply)
	}
	open := func() grpc.ClientStream {
		cs := open(t, t.Context(), cc, &serverStream, muxtest.Method("Stream"))
		require.NoError(t, cs.CloseSend())
		return cs
	}
	before := open()
	assert.Equal(t, `books {title: "old"}`, first(before))

	bad := cfg
	bad.Backends = []director.Backend{newer, {Name: "a/b"}}
	require.ErrorContains(t, d.Reload(bad), "backends[1]")
	assert.Equal(t, `books {title: "old"}`, first(open()), "a bad configuration changes nothing")

	cfg.Backends = []director.Backend{newer}
	require.NoError(t, d.Reload(cfg))
	assert.Equal(t, `books {title: "new"}`, first(open()))
	close(release)
	assert.Equal(t, `books {title: "old again"}`, first(before))
}

func TestReloadUnderLoadFailsNoCall(t *testing.T) {
	dir := muxtest.Dir(t)
	var calls atomic.Int32
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library}
	for i, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(dir, fmt.Sprint(i)), name, echo(&calls))
		cfg.Backends = append(cfg.Backends, b)
	}
	d := muxtest.New(t, cfg)
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				reply := &codec.Frame{}
				if err := cc.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Bytes("GetRequest", `book_id: "beta.io__1"`), reply); err != nil {
					t.Error(err)
					return
				}
				if got := muxtest.Text("Book", reply); got != `id: "beta.io__7f" title: "book_id: \"1\""` {
					t.Error(got)
				}
			}
		})
	}
	for range 50 {
		before := calls.Load()
		require.NoError(t, d.Reload(cfg))
		for calls.Load() < before+10 {
		}
	}
	cancel()
	wg.Wait()
}

// Calls of every kind finish, on a backend that the new table does not have.
func TestCallsUnderWayFinishOnTheirTable(t *testing.T) {
	dir := muxtest.Dir(t)
	began, release := make(chan string, 10), make(chan struct{})
	backend := func(name string) director.Backend {
		return muxtest.Backend(t, filepath.Join(dir, "old"+name), name, func(method string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			began <- name
			<-release
			for stream.RecvMsg(&codec.Frame{}) == nil { // to its end
			}
			switch filepath.Base(method) {
			case "Get", "Upload":
				return stream.SendMsg(muxtest.Bytes("Book", "id: '1'"))
			case "Chat":
				return stream.SendMsg(muxtest.Bytes("Page", "book_id: '1'"))
			case "List", "Stream":
				return stream.SendMsg(muxtest.Bytes("ListResponse", "books {id: '1'}"))
			default:
				return stream.SendMsg(muxtest.Bytes("Page", "text: 'unknown'"))
			}
		})
	}
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library, Backends: []director.Backend{backend(""), backend("beta.io")}}
	d := muxtest.New(t, cfg)
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d))

	beta := func(message string) string { return string(muxtest.Bytes(message, `book_id: "beta.io__1"`).Bytes()) }
	both := grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	calls := []struct {
		name     string
		method   string
		desc     grpc.StreamDesc
		requests []string
		backends int
		want     []string
	}{
		{"unary", muxtest.Method("Get"), grpc.StreamDesc{}, []string{beta("GetRequest")}, 1, []string{"\n\x0abeta.io__1"}},
		{"a stream from the server", muxtest.Method("Stream"), grpc.StreamDesc{ServerStreams: true}, []string{beta("ListRequest")}, 1, []string{"\n\x0c\n\x0abeta.io__1"}},
		{"a stream from the client", muxtest.Method("Upload"), grpc.StreamDesc{ClientStreams: true}, []string{beta("Page"), beta("Page")}, 1, []string{"\n\x0abeta.io__1"}},
		{"streams both ways", muxtest.Method("Chat"), both, []string{beta("Page"), beta("Page")}, 1, []string{"\n\x0abeta.io__1"}},
		{"a list of all", muxtest.Method("List"), grpc.StreamDesc{}, []string{""}, 2, []string{"\n\x03\n\x011\n\x0c\n\x0abeta.io__1"}},
		{"a streamed list of all", muxtest.Method("Stream"), grpc.StreamDesc{ServerStreams: true}, []string{""}, 2, []string{"\n\x03\n\x011", "\n\x0c\n\x0abeta.io__1"}},
		{"an unknown method", "/other.Service/Unknown", both, []string{"\n\x011"}, 1, []string{"\x12\x07unknown"}},
	}
	results := make([]outcome, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { results[i] = do(t, cc, c.method, c.desc, c.requests...) })
		for range c.backends {
			<-began
		}
	}
	b := muxtest.Backend(t, filepath.Join(dir, "new"), "", func(string, grpc.ServerStream) error {
		return status.Error(codes.DataLoss, "a call of before came to a new backend")
	})
	cfg.Backends = []director.Backend{b}
	require.NoError(t, d.Reload(cfg))
	close(release)
	wg.Wait()
	for i, c := range calls {
		assert.Empty(t, results[i].err, c.name)
		assert.ElementsMatch(t, c.want, results[i].replies, c.name)
	}
	_, err := call(t, cc, "Get", "GetRequest", "book_id: '1'")
	assert.Equal(t, codes.DataLoss, status.Code(err), "the next call goes there")
}
