package backend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/mounttest"
)

// The file is written each second while there is news, and writing it takes memory besides
// the lists themselves.
func TestTheFileIsWrittenInLittleMemory(t *testing.T) {
	content := &fileContent{
		Backend: "beta.io", BootID: "boot",
		Lists: map[string]inventory.Saved{
			"List": {Reply: bytes.Repeat([]byte{0x0a, 0x01, 'x'}, 4<<20), Statuses: map[string][]byte{"none": {}}, Former: []string{"gone"}},
			"Few":  {Reply: []byte{0x0a, 0x00}},
			"None": {},
		},
		Replies: map[string][]byte{"Version": {1}},
	}
	for i := range 1000 {
		content.Lists["List"].Statuses[fmt.Sprint(i)] = bytes.Repeat([]byte{'y'}, 4<<10)
	}
	path := filepath.Join(t.TempDir(), "beta.io.known")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, writeFile(path, content))
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<20), "of 16 MiB")

	data, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := decodeFile(data)
	require.NoError(t, err)
	for method, l := range content.Lists {
		assert.Equal(t, len(l.Reply), len(got.Lists[method].Reply), method)
		assert.True(t, bytes.Equal(l.Reply, got.Lists[method].Reply), method)
		assert.Len(t, got.Lists[method].Statuses, len(l.Statuses), method)
		assert.Equal(t, l.Former, got.Lists[method].Former, method)
		for id, s := range l.Statuses {
			assert.Equal(t, s, got.Lists[method].Statuses[id], "%s %s", method, id)
		}
	}
	assert.Equal(t, content.Replies, got.Replies)
}

func TestAFileThatIsRemovedIsWrittenAnew(t *testing.T) {
	at := File{Path: filepath.Join(t.TempDir(), "state", "beta.io.known")}
	m := Open("beta.io", at)
	m.listedSinceBoot, m.news = true, true
	require.NoError(t, m.Save())
	require.FileExists(t, at.Path)
	require.NoError(t, os.RemoveAll(filepath.Dir(at.Path)))
	require.NoError(t, m.Save())
	assert.FileExists(t, at.Path, "even without news, and with its folder")
}

func TestAHandoverThatFailsLeavesTheNewsToTheFile(t *testing.T) {
	at := File{Path: filepath.Join(t.TempDir(), "beta.io.known")}
	m := Open("beta.io", at)
	m.listedSinceBoot, m.news, m.late["List"] = true, true, "it is late"
	_, err := m.Encode()
	require.NoError(t, err)
	require.NoError(t, m.Save())
	assert.Contains(t, Open("beta.io", at).late, "List")
}

// A process begins without a folder, and gets one in which an earlier process has left what was true for it.
func TestAFileOfAnEarlierProcessIsReplaced(t *testing.T) {
	at := File{Path: filepath.Join(t.TempDir(), "beta.io.known")}
	earlier := Open("beta.io", at)
	earlier.listedSinceBoot, earlier.news = true, true
	require.NoError(t, earlier.Save())
	m := newBackend("beta.io", File{})
	require.NoError(t, m.Save())
	m.KeepAs("beta.io", at)
	require.NoError(t, m.Save())
	assert.False(t, Open("beta.io", at).listedSinceBoot, "the next process knows what this one knew")

	earlier.news = true
	require.NoError(t, earlier.Save())
	require.NoError(t, Open("beta.io", at).Save())
	assert.True(t, Open("beta.io", at).listedSinceBoot, "a process that has read the file keeps it")
}

// A reload moves the cache to another folder. The next process may use the first folder again, and would believe the file
// that was left there.
func TestAFolderThatIsLeftIsCleaned(t *testing.T) {
	for name, to := range map[string]string{"to another": filepath.Join(t.TempDir(), "beta.io.known"), "to none": ""} {
		at := File{Path: filepath.Join(t.TempDir(), "beta.io.known")}
		m := Open("beta.io", at)
		m.listedSinceBoot, m.news = true, true
		require.NoError(t, m.Save())
		m.KeepAs("beta.io", File{Path: to})
		require.NoError(t, m.Save())
		assert.NoFileExists(t, at.Path, name)
		if to != "" {
			assert.True(t, Open("beta.io", File{Path: to}).listedSinceBoot)
		}
	}
}

// A process that cannot write its file cannot mark it as out of date either.
func TestAFileThatCannotBeWrittenIsNotBelieved(t *testing.T) {
	dir := mounttest.Tmpfs(t, "files on a read-only file system", "size=1m")
	at := File{Path: filepath.Join(dir, "beta.io.known")}
	content := &fileContent{Backend: "beta.io", BootID: at.bootID(), Lists: map[string]inventory.Saved{"List": {Reply: []byte{0x0a, 0x01, 'x'}}}}
	require.NoError(t, writeFile(at.Path, content))

	require.NoError(t, Open("beta.io", at).Err())
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	m := Open("beta.io", at)
	assert.ErrorContains(t, m.Err(), "beta.io.known may be old, because its folder cannot be written")
	assert.ErrorContains(t, m.Err(), "make it writable, or remove the file")
	assert.True(t, m.inv.Empty())

	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	content.BootID = "another"
	require.NoError(t, writeFile(at.Path, content))
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	assert.NoError(t, Open("beta.io", at).Err(), "what ran before the boot is dead")
}

// A full disk leaves an empty file.
func TestAFileThatADiskHadNoRoomForSaysSo(t *testing.T) {
	at := File{Path: filepath.Join(t.TempDir(), "beta.io.known")}
	content := &fileContent{Backend: "beta.io", BootID: at.bootID()}
	require.NoError(t, writeFile(at.Path, content))
	distrust(at.Path)
	assert.ErrorContains(t, Open("beta.io", at).Err(), "beta.io.known is broken (it is empty: an earlier process could not write it, as on a full disk)")
}
