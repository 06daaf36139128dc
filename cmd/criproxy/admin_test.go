package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/listen"
)

// testAdmin serves an admin socket until the test ends, and returns its path.
func testAdmin(t *testing.T, a *admin) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "admin") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	path := filepath.Join(dir, "a.sock")
	a.listener, err = listen.Unix(path, adminMode, "-admin")
	require.NoError(t, err)
	t.Cleanup(a.start())
	return path
}

func TestTheAdminSocketIsForOneUserAndAnswers(t *testing.T) {
	path := testAdmin(t, newAdmin(nil, nil, http.NotFound))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	response, err := newAdminClient(path).get(t.Context(), "/version")
	require.NoError(t, err)
	defer response.Body.Close()
	var got versionInfo
	require.NoError(t, json.NewDecoder(response.Body).Decode(&got))
	assert.Equal(t, versionInfo{Version: version, PID: os.Getpid()}, got)

	_, err = newAdminClient(path).get(t.Context(), "/nothing")
	require.ErrorContains(t, err, "does not know /nothing")
	_, err = newAdminClient(path+"x").get(t.Context(), "/version")
	require.ErrorContains(t, err, "is criproxy running, and with this -admin?")
}

func TestStoppingTheAdminSocketEndsWhatItServes(t *testing.T) {
	a := newAdmin(nil, nil, http.NotFound)
	began := make(chan struct{})
	a.mux.HandleFunc("GET /long", func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
	})
	dir := t.TempDir()
	var err error
	a.listener, err = net.Listen("unix", filepath.Join(dir, "a"))
	require.NoError(t, err)
	stop := a.start()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if response, err := newAdminClient(filepath.Join(dir, "a")).get(t.Context(), "/long"); err == nil {
			response.Body.Close()
		}
	}()
	<-began
	stop()
	<-ended
	assert.NoFileExists(t, filepath.Join(dir, "a"))
}

func jsonDecode(r io.Reader, v any) error { return json.NewDecoder(r).Decode(v) }
