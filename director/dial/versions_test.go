package dial_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func put(t *testing.T, cc grpc.ClientConnInterface) error {
	return cc.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
}

func TestABackendThatSpeaksNoKnownVersionSaysSo(t *testing.T) {
	var asked atomic.Int32
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: muxtest.UpperCase}, muxtest.Speaking("v7", &asked))
	err := put(t, cc)
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.Regexp(t, `criproxy: backend primary \(.*\) serves none of library.v1, library.v0`, err.Error())
}

// running returns a connection to the server at path, which runs until the test ends.
func running(t *testing.T, path string, watch func(error)) *dial.Conn {
	conn, err := dial.New(dial.Config{
		GRPC: muxtest.OverGRPC, Address: path, Watch: watch,
		Profile: muxtest.TwoVersions(t), Schema: muxtest.Library, Conversions: muxtest.UpperCase,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		assert.NoError(t, conn.Run(ctx))
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return conn
}

func TestRestartedBackendIsAskedForItsVersionAgain(t *testing.T) {
	var asked atomic.Int32
	dir := muxtest.Dir(t)
	old := muxtest.Serve(t, dir+"/b.sock", muxtest.Speaking("v0", &asked))
	states := make(chan error, 100)
	conn := running(t, old.Path, func(err error) { states <- err })
	d := muxtest.New(t, director.Config{Profile: muxtest.TwoVersions(t), Schema: muxtest.Library, Conversions: muxtest.UpperCase, Backends: []director.Backend{{Conn: conn}}})
	put := func() (string, error) {
		var trailer metadata.MD
		err := d.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{}, grpc.Trailer(&trailer))
		return strings.Join(trailer["x-version"], ","), err
	}
	assert.NoError(t, <-states, "connected")
	version, err := put()
	require.NoError(t, err)
	assert.Equal(t, "v0", version)

	old.Stop()
	assert.Error(t, <-states, "lost")
	_, err = put()
	assert.Equal(t, codes.Unavailable, status.Code(err))
	muxtest.Serve(t, dir+"/b.sock", muxtest.Speaking("v1", &asked))
	assert.NoError(t, <-states, "connected again")
	version, err = put()
	require.NoError(t, err)
	assert.Equal(t, "v1", version)
	assert.Empty(t, states, "one word for each change")
}

// A restart can be over before Run sees that the connection is down. Here Run sees nothing at all,
// because its Watch does not return.
func TestAReconnectThatRunMissedIsNoticed(t *testing.T) {
	for _, back := range []string{"v1", "v0 v1"} {
		t.Run("as "+back, func(t *testing.T) {
			var asked atomic.Int32
			dir := muxtest.Dir(t)
			old := muxtest.Serve(t, dir+"/b.sock", muxtest.Speaking("v0", &asked))
			told, release := make(chan error), make(chan struct{})
			conn := running(t, old.Path, func(err error) { told <- err; <-release })
			defer close(release)
			version := func() (string, error) {
				var trailer metadata.MD
				err := conn.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{}, grpc.Trailer(&trailer))
				return strings.Join(trailer["x-version"], ","), err
			}
			require.NoError(t, <-told)
			got, err := version()
			require.NoError(t, err)
			assert.Equal(t, "v0", got)

			old.Stop()
			muxtest.Serve(t, dir+"/b.sock", muxtest.Speaking(back, &asked))
			require.Eventually(t, func() bool {
				got, err = version()
				assert.Contains(t, []codes.Code{codes.OK, codes.Unavailable}, status.Code(err), "%v", err)
				return err == nil && got == "v1"
			}, 10*time.Second, time.Millisecond, "the version of the connection before is used: %s, %v", got, err)
		})
	}
}

func TestACallInTheVersionBeforeIsNotUnimplemented(t *testing.T) {
	var asked atomic.Int32
	dir := muxtest.Dir(t)
	conn, err := dial.New(dial.Config{GRPC: muxtest.OverGRPC, Address: dir + "/b.sock", Profile: muxtest.TwoVersions(t), Schema: muxtest.Library, Conversions: muxtest.UpperCase})
	require.NoError(t, err)
	defer conn.Close()
	calls := map[string]func() error{
		"unary": func() error { return put(t, conn) },
		"stream": func() error {
			cs, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"))
			if err != nil {
				return err
			}
			if err := cs.SendMsg(&codec.Frame{}); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return cs.RecvMsg(&codec.Frame{})
		},
	}
	for _, kind := range slices.Sorted(maps.Keys(calls)) {
		versions := []string{"v0", "v1", "v0", "v1"}
		for _, v := range versions { // without Run, the call that finds the connection lost makes a new one
			server := muxtest.Serve(t, dir+"/b.sock", muxtest.Speaking(v, &asked))
			require.Eventually(t, func() bool {
				err := calls[kind]()
				assert.Contains(t, []codes.Code{codes.OK, codes.Unavailable}, status.Code(err), "%s: %v", kind, err)
				return err == nil
			}, 10*time.Second, time.Millisecond)
			server.Stop()
		}
	}
}

func TestAProbeThatFailsIsNotAnAnswer(t *testing.T) {
	unknown := status.Error(codes.Unimplemented, "unknown service library.v1.Library")
	for name, c := range map[string]struct{ newer, older, want error }{
		"containerd 1.6, while it starts": {errStarting, errStarting, errStarting},
		"unavailable":                     {status.Error(codes.Unavailable, "not now"), unknown, status.Error(codes.Unavailable, "not now")},
		"internal":                        {status.Error(codes.Internal, "no"), status.Error(codes.Internal, "no"), status.Error(codes.Internal, "no")},
		"only the older one answers":      {errStarting, nil, errStarting},
		"no service yet":                  {unknown, unknown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			var ready atomic.Bool
			speak := muxtest.Speaking("v0 v1", &asked)
			cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: muxtest.UpperCase}, func(method string, stream grpc.ServerStream) error {
				err := c.newer
				if strings.Contains(method, "v0") {
					err = c.older
				}
				if ready.Load() || err == nil {
					return speak(method, stream)
				}
				return err
			})
			var trailer metadata.MD
			put := func() error {
				trailer = nil
				return cc.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{}, grpc.Trailer(&trailer))
			}
			err := put()
			if c.want != nil {
				assert.EqualError(t, err, c.want.Error())
			}
			assert.Error(t, err)
			ready.Store(true)
			require.NoError(t, put())
			assert.Equal(t, []string{"v1"}, trailer["x-version"])
		})
	}
}

var errStarting = status.Error(codes.Unknown, "server is not initialized yet")

func TestAnOlderVersionThatFailsIsNotNeeded(t *testing.T) {
	var asked atomic.Int32
	speak := muxtest.Speaking("v1", &asked)
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: muxtest.UpperCase}, func(method string, stream grpc.ServerStream) error {
		if strings.Contains(method, "v0") {
			return errStarting
		}
		return speak(method, stream)
	})
	err := put(t, cc)
	assert.NoError(t, err)
}

func TestACallThatWaitsForAProbeKeepsItsDeadline(t *testing.T) {
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.TwoVersions(t), Conversions: muxtest.UpperCase}, func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	errs := make(chan error, 2)
	for range 2 { // one call asks, and the other waits for it
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			errs <- cc.Invoke(ctx, muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
		}()
	}
	for range 2 {
		assert.Equal(t, codes.DeadlineExceeded, status.Code(<-errs))
	}
}
