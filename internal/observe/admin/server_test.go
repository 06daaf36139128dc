package admin

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// testAdmin serves an admin socket until the test ends, and returns its path.
func testAdmin(t *testing.T, a *Server) string {
	t.Helper()
	path := filepath.Join(testkit.SocketDir(t), "a.sock")
	l, err := listen.Unix(path, Mode, "-admin")
	require.NoError(t, err)
	a.Listener = l
	t.Cleanup(a.Start())
	return path
}

func TestTheAdminSocketIsForOneUserAndAnswers(t *testing.T) {
	want := Version{Version: config.Version, PID: os.Getpid(), StaysFor: []LongCall{{PID: 7, Method: "/a.B/Stop", Client: "kubelet"}}}
	answers := map[string]Answer{"/version": func(context.Context) (any, error) { return want, nil }}
	path := testAdmin(t, New(answers, func(*http.ServeMux) {}, http.NotFound, http.NotFound))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	response, err := NewClient(path).Get(t.Context(), "/version")
	require.NoError(t, err)
	defer response.Body.Close()
	var got Version
	require.NoError(t, json.NewDecoder(response.Body).Decode(&got))
	assert.Equal(t, want, got)

	_, err = NewClient(path).Get(t.Context(), "/nothing")
	require.ErrorContains(t, err, "does not know /nothing")
	_, err = NewClient(path+"x").Get(t.Context(), "/version")
	require.ErrorContains(t, err, "check that criproxy is running, and that this is its -admin")
}

func TestStoppingTheAdminSocketEndsWhatItServes(t *testing.T) {
	a := New(nil, func(*http.ServeMux) {}, http.NotFound, http.NotFound)
	began := make(chan struct{})
	a.mux.HandleFunc("GET /long", func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
	})
	dir := testkit.SocketDir(t)
	var err error
	a.Listener, err = net.Listen("unix", filepath.Join(dir, "a"))
	require.NoError(t, err)
	stop := a.Start()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if response, err := NewClient(filepath.Join(dir, "a")).Get(t.Context(), "/long"); err == nil {
			response.Body.Close()
		}
	}()
	<-began
	stop()
	<-ended
	assert.NoFileExists(t, filepath.Join(dir, "a"))
}

// In a handover, the old process said that calls to its runtimes failed: it had stopped asking them.
func TestAReportThatAStopCutsOffIsNoAnswer(t *testing.T) {
	asked := make(chan struct{})
	answers := map[string]Answer{"/status": func(ctx context.Context) (any, error) {
		close(asked)
		<-ctx.Done()
		return Report{Backends: []Backend{{Error: "not asked"}}}, nil
	}}
	a := New(answers, func(*http.ServeMux) {}, http.NotFound, http.NotFound)
	path := filepath.Join(testkit.SocketDir(t), "a")
	var err error
	a.Listener, err = net.Listen("unix", path)
	require.NoError(t, err)
	stop := a.Start()
	go func() { <-asked; stop() }()
	_, err = NewClient(path).Get(t.Context(), "/status")
	assert.ErrorContains(t, err, "there is no admin socket", "it asks the process that serves the socket now")
}

// The process that was asked may end, because another has taken over.
func TestAnUnansweredQuestionIsAskedAgain(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "a")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 1<<10))
		_ = c.Close()
		_ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	}()
	response, err := NewClient(path).Get(t.Context(), "/version")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}
