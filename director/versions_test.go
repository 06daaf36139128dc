package director_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/rewrite"
)

func TestClientAndBackendMayDifferInVersion(t *testing.T) {
	for _, c := range []struct{ client, backend, spoken string }{
		{"v1", "v1", "v1"},
		{"v1", "v0", "v0"},
		{"v0", "v1", "v1"},
		{"v0", "v0", "v0"},
		{"v1", "v0 v1", "v1"},
		{"v0", "v0 v1", "v1"},
	} {
		t.Run(fmt.Sprintf("client %s, backend %s", c.client, c.backend), func(t *testing.T) {
			var asked atomic.Int32
			cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: muxtest.UpperCase},
				muxtest.Speaking(c.backend, &asked), muxtest.Speaking(c.backend, &asked))
			title := map[string]string{"v1": "title", "v0": "TITLE"}
			method := func(name string) string { return "/library." + c.client + ".Library/" + name }

			for range 3 {
				var trailer metadata.MD
				reply := &codec.Frame{}
				request := muxtest.Frame(t, "PutRequest", fmt.Sprintf(`book {id: "beta.io__1" title: %q}`, title[c.client]))
				require.NoError(t, cc.Invoke(t.Context(), method("Put"), request, reply, grpc.Trailer(&trailer)))
				assert.Equal(t, []string{c.spoken}, trailer["x-version"])
				assert.Equal(t, []string{fmt.Sprintf(`book {id: "1" title: %q}`, title[c.spoken])}, trailer["x-got"])
				answer := map[string]string{"v1": "answer", "v0": "ANSWER"}[c.client]
				muxtest.EqualProto(t, "Book", fmt.Sprintf(`id: "beta.io__7" title: %q`, answer), reply)
			}
			assert.EqualValues(t, len(strings.Fields(c.backend)), asked.Load(), "a backend is asked once for each version")

			o := do(t, cc, method("Stream"), serverStream, string(muxtest.Bytes("ListRequest", `book_id: "beta.io__1"`).Bytes()))
			require.Empty(t, o.err)
			page := map[string]string{"v1": "page", "v0": "PAGE"}[c.client]
			muxtest.EqualProto(t, "ListResponse", fmt.Sprintf(`books {id: "beta.io__7" title: %q}`, page), codec.NewFrame([]byte(o.replies[0])))
		})
	}
}

// A Pass would call the method by the name that the client uses, which the backend does not know.
func TestNoPassGetsTheStreamOfAnOlderClient(t *testing.T) {
	pass := func(context.Context, grpc.ClientConnInterface, grpc.ServerStream) error {
		return errors.New("the name is the older one")
	}
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: muxtest.UpperCase, Pass: pass}, func(method string, stream grpc.ServerStream) error {
		switch method {
		case muxtest.Method("Version"):
			return stream.SendMsg(&codec.Frame{})
		case muxtest.Method("Upload"):
			for {
				if err := stream.RecvMsg(&codec.Frame{}); errors.Is(err, io.EOF) {
					return stream.SendMsg(muxtest.Bytes("Book", `title: "answer"`))
				}
			}
		}
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	})
	o := do(t, cc, "/library.v0.Library/Upload", grpc.StreamDesc{ClientStreams: true}, "", "")
	require.Empty(t, o.err)
	muxtest.EqualProto(t, "Book", `title: "ANSWER"`, codec.NewFrame([]byte(o.replies[0])))
}

func TestAConversionThatFailsIsAnErrorOfTheCall(t *testing.T) {
	var asked atomic.Int32
	bad := map[string]director.Conversion{"upper": {
		Fields: []string{"Book.title"},
		Up:     func(dst []byte, _ rewrite.Class, _ []byte) ([]byte, error) { return dst, errors.New("no such letter") },
	}}
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: bad}, muxtest.Speaking("v1", &asked))
	err := cc.Invoke(t.Context(), "/library.v0.Library/Put", muxtest.Frame(t, "PutRequest", `book {title: "x"}`), &codec.Frame{})
	assert.EqualError(t, err, "rpc error: code = Internal desc = criproxy: Put: converting to the newest version: no such letter")

	_, err = director.New(director.Config{Profile: muxtest.TwoVersions(t), Schema: muxtest.Library, Backends: make([]director.Backend, 1)})
	assert.EqualError(t, err, `3:5: versions[1]: convert: there is no code called "upper"`)
	_, err = director.New(director.Config{Profile: muxtest.TwoVersions(t), Schema: muxtest.Library, Backends: make([]director.Backend, 1),
		Conversions: map[string]director.Conversion{"upper": {Fields: []string{"Book.titel"}}}})
	assert.EqualError(t, err, `3:5: versions[1]: convert: upper: Book.titel: no such field (did you mean "title"?)`)
}
