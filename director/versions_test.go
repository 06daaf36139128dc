package director_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
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
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/rewrite"
)

// In version 0 of the library titles were in upper case.
var upperCase = map[string]director.Conversion{"upper": {
	Fields: []string{"Book.title"},
	Up: func(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) {
		return append(dst, strings.ToLower(string(v))...), nil
	},
	Down: func(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) {
		return append(dst, strings.ToUpper(string(v))...), nil
	},
}}

func twoVersions(t *testing.T) *director.Profile {
	return muxtest.LibraryProfile(t, "  - package: library.v1\n", "  - package: library.v1\n  - {package: library.v0, convert: [upper]}\nprobe: Library/Version\n")
}

// speaking is a server that has only some versions. It counts its calls,
// and answers with the title that arrived.
func speaking(versions string, asked *atomic.Int32) muxtest.Handler {
	return func(method string, stream grpc.ServerStream) error {
		version := strings.Split(method, ".")[1]
		request := &codec.Frame{}
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		if !strings.Contains(versions, version) {
			return status.Errorf(codes.Unimplemented, "unknown service %s.Library", "library."+version)
		}
		switch filepath.Base(method) {
		case "Version":
			asked.Add(1)
			return stream.SendMsg(&codec.Frame{})
		case "Put":
			stream.SetTrailer(metadata.Pairs("x-got", muxtest.Text("PutRequest", request), "x-version", version))
			return stream.SendMsg(muxtest.Bytes("Book", map[string]string{"v1": `id: "7" title: "answer"`, "v0": `id: "7" title: "ANSWER"`}[version]))
		case "Stream":
			return stream.SendMsg(muxtest.Bytes("ListResponse", map[string]string{"v1": `books {id: "7" title: "page"}`, "v0": `books {id: "7" title: "PAGE"}`}[version]))
		}
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
}

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
			cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase},
				speaking(c.backend, &asked), speaking(c.backend, &asked))
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

func TestABackendThatSpeaksNoKnownVersionSaysSo(t *testing.T) {
	var asked atomic.Int32
	cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase}, speaking("v7", &asked))
	_, err := call(t, cc, "Put", "PutRequest", "")
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.Regexp(t, `criproxy: backend primary \(.*\) speaks none of library.v1, library.v0`, err.Error())
}

func TestRestartedBackendIsAskedForItsVersionAgain(t *testing.T) {
	var asked atomic.Int32
	dir := muxtest.Dir(t)
	profile := twoVersions(t)
	old := muxtest.Serve(t, dir+"/b.sock", speaking("v0", &asked))
	states := make(chan error, 100)
	conn, err := director.NewConn(director.ConnConfig{
		Address: old.Path, Profile: profile, Schema: muxtest.Library, Conversions: upperCase,
		Watch: func(err error) { states <- err },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		assert.NoError(t, conn.Run(ctx))
	}()
	defer func() { cancel(); <-ended }()
	d, err := director.New(director.Config{Profile: profile, Schema: muxtest.Library, Conversions: upperCase, Backends: []director.Backend{{Conn: conn}}})
	require.NoError(t, err)
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
	muxtest.Serve(t, dir+"/b.sock", speaking("v1", &asked))
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
			profile := twoVersions(t)
			old := muxtest.Serve(t, dir+"/b.sock", speaking("v0", &asked))
			told, release := make(chan error), make(chan struct{})
			conn, err := director.NewConn(director.ConnConfig{
				Address: old.Path, Profile: profile, Schema: muxtest.Library, Conversions: upperCase,
				Watch: func(err error) { told <- err; <-release },
			})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				assert.NoError(t, conn.Run(ctx))
			}()
			defer func() { cancel(); close(release); <-ended }()
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
			muxtest.Serve(t, dir+"/b.sock", speaking(back, &asked))
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
	conn, err := director.NewConn(director.ConnConfig{Address: dir + "/b.sock", Profile: twoVersions(t), Schema: muxtest.Library, Conversions: upperCase})
	require.NoError(t, err)
	defer conn.Close()
	calls := map[string]func() error{
		"unary": func() error {
			return conn.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
		},
		"stream": func() error {
			cs, err := conn.NewStream(t.Context(), &serverStream, muxtest.Method("Stream"))
			if err != nil {
				return err
			}
			if err := cs.SendMsg(&codec.Frame{}); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return cs.RecvMsg(&codec.Frame{})
		},
	}
	for _, kind := range sortedKeys(calls) {
		versions := []string{"v0", "v1", "v0", "v1"}
		for _, v := range versions { // without Run, the call that finds the connection lost makes a new one
			server := muxtest.Serve(t, dir+"/b.sock", speaking(v, &asked))
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
			speak := speaking("v0 v1", &asked)
			cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase}, func(method string, stream grpc.ServerStream) error {
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
	speak := speaking("v1", &asked)
	cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase}, func(method string, stream grpc.ServerStream) error {
		if strings.Contains(method, "v0") {
			return errStarting
		}
		return speak(method, stream)
	})
	_, err := call(t, cc, "Put", "PutRequest", "")
	assert.NoError(t, err)
}

func TestACallThatWaitsForAProbeKeepsItsDeadline(t *testing.T) {
	cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase}, func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	errs := make(chan error, 2)
	for range 2 { // one call probes, and the other waits for it
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

func TestAConversionThatFailsIsAnErrorOfTheCall(t *testing.T) {
	var asked atomic.Int32
	bad := map[string]director.Conversion{"upper": {
		Fields: []string{"Book.title"},
		Up:     func(dst []byte, _ rewrite.Class, _ []byte) ([]byte, error) { return dst, errors.New("no such letter") },
	}}
	cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: bad}, speaking("v1", &asked))
	err := cc.Invoke(t.Context(), "/library.v0.Library/Put", muxtest.Frame(t, "PutRequest", `book {title: "x"}`), &codec.Frame{})
	assert.EqualError(t, err, "rpc error: code = Internal desc = criproxy: Put: converting to the newest version: no such letter")

	_, err = director.New(director.Config{Profile: twoVersions(t), Schema: muxtest.Library, Backends: make([]director.Backend, 1)})
	assert.EqualError(t, err, `3:5: versions[1]: convert: there is no code called "upper"`)
	_, err = director.New(director.Config{Profile: twoVersions(t), Schema: muxtest.Library, Backends: make([]director.Backend, 1),
		Conversions: map[string]director.Conversion{"upper": {Fields: []string{"Book.titel"}}}})
	assert.EqualError(t, err, `3:5: versions[1]: convert: upper: Book.titel: no such field (did you mean "title"?)`)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
