package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFoldersTooLongForSocketsAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a-very-long-name-in-which-no-socket-would-ever-fit-however-hard-one-tries", "really")
	_, err := NewDir(dir, "containerd.sock.ttrpc")
	assert.ErrorContains(t, err, "too long for a socket")
	assert.NoDirExists(t, dir, "it is not even made")
}

func TestNewFoldersAreShortEnoughForTheirSockets(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 80))
	require.NoError(t, os.Mkdir(long, 0o755))
	t.Setenv("TMPDIR", long)
	const socket = "root/pod-resources/kubelet.sock"
	dir, err := NewDir("", socket)
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	assert.LessOrEqual(t, len(dir)+len("/"+socket), maxSocketPath)
	assert.True(t, claimed(dir))
}
