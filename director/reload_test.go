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

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/muxtest"
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
	conns := map[string]*director.Conn{}
	for _, name := range []string{"old", "new"} {
		s := muxtest.Serve(t, filepath.Join(dir, name), slow(name))
		conn, err := director.NewConn(director.ConnConfig{Address: s.Path})
		require.NoError(t, err)
		defer conn.Close()
		conns[name] = conn
	}
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library, Backends: []director.Backend{{Conn: conns["old"]}}}
	d, err := director.New(cfg)
	require.NoError(t, err)
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux"), d))

	first := func(cs grpc.ClientStream) string {
		reply := &codec.Frame{}
		require.NoError(t, cs.RecvMsg(reply))
		return muxtest.Text("ListResponse", reply)
	}
	open := func() grpc.ClientStream {
		cs, err := cc.NewStream(t.Context(), &serverStream, muxtest.Method("Stream"))
		require.NoError(t, err)
		require.NoError(t, cs.SendMsg(&codec.Frame{}))
		require.NoError(t, cs.CloseSend())
		return cs
	}
	before := open()
	assert.Equal(t, `books {title: "old"}`, first(before))

	bad := cfg
	bad.Backends = []director.Backend{{Conn: conns["new"]}, {Name: "a/b"}}
	require.ErrorContains(t, d.Reload(bad), "backends[1]")
	assert.Equal(t, `books {title: "old"}`, first(open()), "a bad configuration changes nothing")

	cfg.Backends = []director.Backend{{Conn: conns["new"]}}
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
		s := muxtest.Serve(t, filepath.Join(dir, fmt.Sprint(i)), echo(&calls))
		conn, err := director.NewConn(director.ConnConfig{Name: name, Address: s.Path})
		require.NoError(t, err)
		defer conn.Close()
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: conn})
	}
	d, err := director.New(cfg)
	require.NoError(t, err)
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
