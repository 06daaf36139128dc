package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/testing/mounttest"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

func TestAFolderThatOthersCanWriteToIsNotTrusted(t *testing.T) {
	top, err := os.MkdirTemp("", "trust") // in /tmp, which is sticky
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(top) }) // the error would change nothing
	folder := func(name string, mode os.FileMode) string {
		path := filepath.Join(top, name)
		require.NoError(t, os.MkdirAll(path, 0o755))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	ours := folder("ours", 0o755)
	open := folder("open", 0o777)
	inOpen := folder("open/inside", 0o755)
	sticky := folder("sticky", 0o777|os.ModeSticky)
	inSticky := folder("sticky/inside", 0o700)
	link := filepath.Join(top, "link")
	require.NoError(t, os.Symlink(open, link))

	for _, s := range []host.Sharing{host.Alone, host.Sticky} {
		assert.NoError(t, host.Folder(ours, s))
		assert.NoError(t, host.Folder(filepath.Join(ours, "not", "there"), s))
		assert.NoError(t, host.Folder(inSticky, s))
		assert.ErrorContains(t, host.Folder(open, s), "can be written to by every user (mode 0777)")
		assert.ErrorContains(t, host.Folder(inOpen, s), "chmod o-w "+open, "another folder could take its place")
		assert.ErrorContains(t, host.Folder(link, s), "chmod o-w "+open)
		assert.Error(t, host.Folder(filepath.Join(open, "not", "there"), s), "another user could make it")
	}
	assert.NoError(t, host.Folder(sticky, host.Sticky))
	assert.Error(t, host.Folder(sticky, host.Alone))
	if os.Getuid() != 0 {
		untested.Skip(t, "folders of another user: only root can give one away")
	}
	theirs := folder("theirs", 0o755)
	require.NoError(t, os.Chown(theirs, 65534, 65534))
	assert.ErrorContains(t, host.Folder(theirs, host.Sticky), "belongs to uid 65534")

	// In /tmp, a link of another user leads to a folder of ours, but its owner can change that.
	swayed := filepath.Join(sticky, "link")
	require.NoError(t, os.Symlink(ours, swayed))
	require.NoError(t, os.MkdirAll(filepath.Join(ours, "inside"), 0o755))
	assert.NoError(t, host.Folder(swayed, host.Sticky), "it is ours as well")
	require.NoError(t, os.Lchown(swayed, 65534, 65534))
	assert.ErrorContains(t, host.Folder(swayed, host.Sticky), "the symbolic link "+swayed+" belongs to uid 65534")
	assert.ErrorContains(t, host.Folder(filepath.Join(swayed, "inside"), host.Alone), "belongs to uid 65534")
	inOpenToo := filepath.Join(open, "link")
	require.NoError(t, os.Symlink(ours, inOpenToo))
	assert.ErrorContains(t, host.Folder(inOpenToo, host.Sticky), "chmod o-w "+open, "every user could put another link in its place")
}

func TestAFileThatOthersCanWriteToIsNotTrusted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	assert.NoError(t, host.File(path))
	require.NoError(t, os.Chmod(path, 0o666))
	assert.ErrorContains(t, host.File(path), "chmod o-w "+path)
	if os.Getuid() != 0 {
		untested.Skip(t, "files of another user: only root can give one away")
	}
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, os.Chown(path, 65534, 65534))
	assert.ErrorContains(t, host.File(path), "belongs to uid 65534")
}

// kubelet mounts a ConfigMap with a mode that lets every user write, but read-only.
func TestAReadOnlyMountIsTrustedWhateverItsMode(t *testing.T) {
	dir := mounttest.Tmpfs(t, "read-only mounts", "mode=0777")
	assert.ErrorContains(t, host.Folder(dir, host.Alone), "can be written to by every user")
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "mode=0777"))
	assert.NoError(t, host.Folder(dir, host.Alone))
}
