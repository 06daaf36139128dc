package director_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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
	"github.com/criproxy/criproxy/internal/muxtest"
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

// speaking is a server that has some versions only, counts what it is asked,
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

func TestAClientAndABackendOfDifferentVersionsUnderstandEachOther(t *testing.T) {
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

func TestABackendThatComesBackAsAnotherVersionIsAskedAgain(t *testing.T) {
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

func TestAProbeThatFailsIsNotAnAnswer(t *testing.T) {
	var asked atomic.Int32
	var ready atomic.Bool
	speak := speaking("v1", &asked)
	cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase}, func(method string, stream grpc.ServerStream) error {
		if !ready.Load() { // containerd 1.6, while it starts
			return status.Error(codes.Unknown, "server is not initialized yet")
		}
		return speak(method, stream)
	})
	_, err := call(t, cc, "Put", "PutRequest", "")
	assert.EqualError(t, err, "rpc error: code = Unknown desc = server is not initialized yet")
	ready.Store(true)
	_, err = call(t, cc, "Put", "PutRequest", "")
	assert.NoError(t, err)
}

func TestACallThatWaitsForAProbeKeepsItsDeadline(t *testing.T) {
	cc := muxtest.Mux(t, director.Config{Profile: twoVersions(t), Conversions: upperCase}, func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	errs := make(chan error, 2)
	for range 2 { // one probes, the other waits for it
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
	assert.EqualError(t, err, `line 3: versions[1]: convert: there is no code called "upper"`)
	_, err = director.New(director.Config{Profile: twoVersions(t), Schema: muxtest.Library, Backends: make([]director.Backend, 1),
		Conversions: map[string]director.Conversion{"upper": {Fields: []string{"Book.titel"}}}})
	assert.EqualError(t, err, `line 3: versions[1]: convert: upper: Book.titel: no such field (did you mean "title"?)`)
}
