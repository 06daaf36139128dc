package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Of a criproxy that does not run, it listed twelve errors, and then called the bundle complete.
func TestABundleThatLacksPartsIsNotComplete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "x.tar.gz")
	var out bytes.Buffer
	require.NoError(t, Support(t.Context(), []string{"-admin", filepath.Join(dir, "none.sock"), file}, &out, io.Discard))
	assert.Regexp(t, `x\.tar\.gz lacks 1\d of its 14 parts`, out.String())
	assert.NotContains(t, out.String(), "is complete")
	assert.FileExists(t, file)
}

// otherAPI has the answers of a criproxy that serves another API than CRI.
var otherAPI = map[string]admin.Answer{
	"/status":   func(context.Context) (any, error) { return admin.Report{}, nil },
	"/pods":     func(context.Context) (any, error) { return nil, admin.ErrNoPods },
	"/settings": func(context.Context) (any, error) { return config.Settings{}, nil },
}

// Its bundle lacked pods.json, as if something were wrong.
func TestABundleOfAnotherAPIHasNoPods(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "a.sock"))
	require.NoError(t, err)
	s := admin.New(otherAPI, func(*http.ServeMux) {}, http.NotFound, http.NotFound)
	s.Listener = l
	defer s.Start()()
	var out bytes.Buffer
	require.NoError(t, Support(t.Context(), []string{"-admin", l.Addr().String(), filepath.Join(dir, "x.tar.gz")}, &out, io.Discard))
	assert.Contains(t, out.String(), "status.json      ok")
	assert.NotContains(t, out.String(), "pods.json")
}
