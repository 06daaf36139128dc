package director_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A backend that answers Unavailable may have done the work all the same.
func TestACallThatFailsIsNotSentAgain(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for _, kind := range kinds {
			t.Run(kind.method+"/"+code.String(), func(t *testing.T) {
				var calls [2]atomic.Int32
				fail := func(n *atomic.Int32) muxtest.Handler {
					return func(_ string, stream grpc.ServerStream) error {
						n.Add(1)
						return status.Error(code, "I have done it, I think")
					}
				}
				cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, fail(&calls[0]), fail(&calls[1]))
				assert.Equal(t, status.Error(code, "I have done it, I think").Error(), do(t, cc, kind.method, kind.desc, "").err)
				for i := range calls {
					assert.LessOrEqual(t, calls[i].Load(), int32(1), "backend %d", i)
				}
				assert.Positive(t, calls[0].Load()+calls[1].Load(), "the first backend that fails ends a call to all")
			})
		}
	}
}

// A backend that ends in the middle of a call may have done the work as well.
func TestACallWhoseBackendEndsIsNotSentAgain(t *testing.T) {
	dir := muxtest.Dir(t)
	var calls atomic.Int32
	come := make(chan struct{}, 2)
	first := muxtest.Serve(t, dir+"/0", func(_ string, stream grpc.ServerStream) error {
		calls.Add(1)
		come <- struct{}{}
		<-stream.Context().Done()
		return nil
	})
	conn, err := dial.New(dial.Config{GRPC: muxtest.OverGRPC, Address: first.Path})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { _ = conn.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	d := muxtest.New(t, director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library, Backends: []director.Backend{{Conn: conn}}})
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, dir+"/mux", d))
	failed := make(chan error, 1)
	go func() { failed <- cc.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{}) }()
	<-come
	first.Stop()
	muxtest.Serve(t, dir+"/0", func(_ string, stream grpc.ServerStream) error { // the backend is back at once
		calls.Add(1)
		if err := stream.RecvMsg(&codec.Frame{}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return stream.SendMsg(&codec.Frame{})
	})
	assert.Equal(t, codes.Unavailable, status.Code(<-failed))
	require.Eventually(t, func() bool {
		return cc.Invoke(t.Context(), muxtest.Method("Get"), &codec.Frame{}, &codec.Frame{}) == nil
	}, 30*time.Second, 10*time.Millisecond, "it is reached again")
	assert.EqualValues(t, 2, calls.Load(), "one of each")
}
