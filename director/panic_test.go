package director_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// panicky is a connection that panics at a point that the test chooses.
type panicky struct {
	grpc.ClientConnInterface
	at *atomic.Value // of string
}

func (p panicky) blow(point string) {
	if p.at.Load() == point {
		panic("blown at " + point)
	}
}

func (p panicky) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	p.blow("Invoke")
	return p.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (p panicky) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	p.blow("NewStream")
	cs, err := p.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	return panickyStream{cs, p}, err
}

type panickyStream struct {
	grpc.ClientStream
	conn panicky
}

func (s panickyStream) SendMsg(m any) error { s.conn.blow("SendMsg"); return s.ClientStream.SendMsg(m) }
func (s panickyStream) RecvMsg(m any) error { s.conn.blow("RecvMsg"); return s.ClientStream.RecvMsg(m) }
func (s panickyStream) CloseSend() error    { s.conn.blow("CloseSend"); return s.ClientStream.CloseSend() }
func (s panickyStream) Header() (metadata.MD, error) {
	s.conn.blow("Header")
	return s.ClientStream.Header()
}

// The panic may happen in any goroutine: that of the call, or one that calls another
// backend or passes on a stream.
func TestAPanicFailsItsCallAndNoOther(t *testing.T) {
	var told atomic.Int32
	dir := muxtest.Dir(t)
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library, Panicked: func(string, any, []byte) { told.Add(1) }}
	var at atomic.Value
	at.Store("")
	for i, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(dir, fmt.Sprint(i)), name, func(_ string, stream grpc.ServerStream) error {
			for {
				if err := stream.RecvMsg(&codec.Frame{}); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return err
				}
			}
			return stream.SendMsg(&codec.Frame{})
		})
		if name != "" {
			b.Conn = panicky{b.Conn, &at}
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	d := muxtest.New(t, cfg)
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d))

	both := grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	beta := muxtest.Frame(t, "GetRequest", `book_id: "beta.io__1"`)
	for _, c := range []struct {
		what, method string
		request      *codec.Frame
		points       []string
	}{
		{"one backend", "Get", beta, []string{"Invoke"}},
		{"all backends", "List", &codec.Frame{}, []string{"Invoke"}},
		{"a stream of one", "Stream", beta, []string{"NewStream", "SendMsg", "CloseSend", "Header", "RecvMsg"}},
		{"a stream of all", "Stream", &codec.Frame{}, []string{"NewStream", "SendMsg", "CloseSend", "Header", "RecvMsg"}},
		{"a stream both ways", "Chat", muxtest.Frame(t, "Page", `book_id: "beta.io__1"`), []string{"NewStream", "SendMsg", "CloseSend", "Header", "RecvMsg"}},
	} {
		for _, point := range c.points {
			told.Store(0)
			at.Store(point)
			o := do(t, cc, muxtest.Method(c.method), both, string(c.request.Bytes()))
			assert.Contains(t, o.err, "code = Internal", "%s, %s", c.what, point)
			assert.Positive(t, told.Load(), "%s, %s", c.what, point)
			at.Store("")
			o = do(t, cc, muxtest.Method(c.method), both, string(c.request.Bytes()))
			require.Empty(t, o.err, "%s, after %s", c.what, point)
		}
	}
}
