package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestCallsGoOnWithoutRoomForTheirCapture(t *testing.T) {
	t.Parallel()
	dir, fill := testkit.SmallDisk(t)
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
	testkit.Eventually(t, "it is said", func() bool { return list() && p.logged("Calls are not captured while the file cannot be written") == 1 })
	for range 20 {
		list()
	}
	assert.Zero(t, p.scrape()["criproxy_capture_up"])
	assert.Equal(t, 1., p.scrape()["criproxy_capture_failures_total"])
	assert.Equal(t, 1, p.logged("Calls are not captured"), "once, however often it is tried")
	require.NoError(t, os.Remove(filepath.Join(dir, "ballast")))
	testkit.Eventually(t, "it goes on", func() bool { return p.logged("Calls are captured again") == 1 })
	assert.Equal(t, 1., p.scrape()["criproxy_capture_up"])
	p.end()
	var all []byte
	for _, name := range []string{"c.jsonl", "c.1.jsonl"} {
		out, err := os.Create(filepath.Join(t.TempDir(), name))
		require.NoError(t, err)
		assert.NoError(t, run(t.Context(), []string{"view", filepath.Join(dir, name)}, out, out), name)
		require.NoError(t, out.Close())
		data := readFile(t, filepath.Join(dir, name))
		all = append(all, data...)
	}
	assert.True(t, bytes.Contains(all, []byte(`"kind":"missed"`)), "the file says that events are missing")
}
