package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// smallDisk returns a folder with room for 256 KiB, and what fills it up.
func smallDisk(t testing.TB) (dir string, fill func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "disk")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // nothing is left to be done
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=0700")
	if errors.Is(err, unix.EPERM) {
		require.Empty(t, os.Getenv("CI"), "only root can mount")
		t.Skip("NOT TESTED: full disks; only root can mount one")
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir, func() {
		f, err := os.Create(filepath.Join(dir, "ballast"))
		require.NoError(t, err)
		defer f.Close() // it is full
		for size := 4096; size > 0; {
			if _, err := f.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
	}
}

func TestCallsGoOnWithoutRoomForTheirCapture(t *testing.T) {
	dir, fill := smallDisk(t)
	p := newProcess(t)
	p.write("capture: {path: " + filepath.Join(dir, "c.jsonl") + ", maxBytes: 65536, maxFiles: 2}\n")
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	list := func() bool {
		_, err := client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		return true
	}
	list()
	fill()
	eventually(t, "it is said", func() bool { return list() && p.logged("Calls are not captured until that is mended") == 1 })
	for range 20 {
		list()
	}
	assert.Zero(t, p.scrape()["criproxy_capture_up"])
	assert.Equal(t, 1., p.scrape()["criproxy_capture_failures_total"])
	assert.Equal(t, 1, p.logged("Calls are not captured"), "once, however often it is tried")
	require.NoError(t, os.Remove(filepath.Join(dir, "ballast")))
	eventually(t, "it goes on", func() bool { return p.logged("Calls are captured again") == 1 })
	assert.Equal(t, 1., p.scrape()["criproxy_capture_up"])
	p.end()
	var all []byte
	for _, name := range []string{"c.jsonl", "c.1.jsonl"} {
		out, err := os.Create(filepath.Join(t.TempDir(), name))
		require.NoError(t, err)
		assert.NoError(t, run(t.Context(), []string{"view", filepath.Join(dir, name)}, out, out), name)
		require.NoError(t, out.Close())
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		all = append(all, data...)
	}
	assert.True(t, bytes.Contains(all, []byte(`"kind":"missed"`)), "it says that some are missing")
}
