package plugin_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nothing(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) { return nil, nil }

func TestRunRegistersFunctionsAndLeavesNoFiles(t *testing.T) {
	dir := testkit.SocketDir(t)
	p := plugin.Plugin{Name: "one", Folder: filepath.Join(dir, "d"), Socket: filepath.Join(dir, "s"), Fail: true, Timeout: 1500 * time.Millisecond,
		PreRunPodSandbox: nothing, PostRemovePodSandbox: nothing}

	// Run replaces the socket file of a dead process.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.Socket, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	file := filepath.Join(p.Folder, "one.json")
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 30*time.Second, time.Millisecond)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	assert.Equal(t, map[string]any{"remote-endpoint": p.Socket, "failure-policy": "Fail", "timeout": "1.5s",
		"runtime-hooks": []any{"PreRunPodSandbox", "PostRemovePodSandbox"}}, got)

	second := p
	second.Name = "two"
	assert.ErrorContains(t, second.Run(t.Context()), "another process already serves "+p.Socket)
	assert.NoFileExists(t, filepath.Join(p.Folder, "two.json"))

	stop()
	require.NoError(t, <-ended)
	left, err := os.ReadDir(p.Folder)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.NoFileExists(t, p.Socket)
}

func TestMistakesAreSaid(t *testing.T) {
	dir := t.TempDir()
	assert.ErrorContains(t, plugin.Plugin{}.Run(t.Context()), `plugin name "": want the name of a file`)
	assert.ErrorContains(t, plugin.Plugin{Name: "a/b"}.Run(t.Context()), "want the name of a file")
	assert.ErrorContains(t, plugin.Plugin{Name: "a", Folder: dir}.Run(t.Context()), "has no function")
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.ErrorContains(t, plugin.Plugin{Name: "a", Folder: file, Socket: filepath.Join(dir, "s"), PreRunPodSandbox: nothing}.Run(t.Context()), "registering")
	assert.NoFileExists(t, filepath.Join(dir, "s"))
}
