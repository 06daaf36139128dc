package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// open makes a folder that every user can write to.
func open(t *testing.T) string {
	dir := testkit.SocketDir(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

func TestNothingIsMadeWhereOthersCanWrite(t *testing.T) {
	dir := open(t)
	_, err := listen.Unix(filepath.Join(dir, "s.sock"), 0o660, "-listen")
	require.ErrorContains(t, err, "another user could put a socket in its place")
	assert.ErrorContains(t, err, "chmod o-w "+dir)

	cfg := &config.Config{StateDir: dir, Backends: make([]config.Backend, 2)}
	makeStateDir(cfg)
	assert.Empty(t, cfg.StateDir, "what lists say would be in others' hands")
	_, err = capture.Create(capture.FileConfig{Path: filepath.Join(dir, "c.jsonl"), Header: func() capture.FileHeader { return capture.FileHeader{} }})
	assert.ErrorContains(t, err, "chmod o-w "+dir)

	ours := &config.Config{StateDir: filepath.Join(t.TempDir(), "a", "state"), Backends: make([]config.Backend, 2)}
	makeStateDir(ours)
	info, err := os.Stat(ours.StateDir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}
