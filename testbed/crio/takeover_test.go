package crio

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// install puts criproxy at CRI-O's own path: the pods go on, CRI and HTTP are served there as before.
func TestCRIOsPathIsTakenOver(t *testing.T) {
	reg := testbed.NewRegistry(t)
	crio := testbed.NewCRIO(t, reg, runtimes.CRIOConfig{})
	pod := runtimes.OnHostNetwork((&runtimes.Containerd{Config: runtimes.Config{Dir: crio.Dir, Name: crio.Name}}).PodConfig("kept"))
	runtime, err := runtimes.Runtime(t.Context(), crio.Endpoint())
	require.NoError(t, err)
	id, err := runtime.RunPodSandbox(t.Context(), pod, "")
	require.NoError(t, err)
	runtime.Close(t.Context())

	program, err := build.Proxy()
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(crio.Dir, name) }
	out, err := host.Command(t.Context(), program, "install", "-takeover", crio.Socket(), "-crio-drop-ins", at("dropins"), "-config", at("criproxy.yaml"),
		"-containerd-config", at("containerd.toml")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "systemctl restart crio.service")
	assert.NoFileExists(t, at("containerd.toml"))

	require.NoError(t, crio.Terminate(t.Context()))
	proxy := host.NewProcess("criproxy", at("criproxy"))
	require.NoError(t, proxy.Start([]string{program, "-config", at("criproxy.yaml"), "-state-dir", at("state"), "-admin", at("admin.sock"), "-logtostderr"}, os.Environ()))
	t.Cleanup(func() { assert.NoError(t, proxy.Terminate(context.Background())) })
	require.NoError(t, crio.Start(t.Context()), "it answers at its old path, through criproxy")

	assert.FileExists(t, at("crio.runtime.sock"))
	runtime, err = runtimes.Runtime(t.Context(), crio.Endpoint())
	require.NoError(t, err)
	defer runtime.Close(t.Context())
	pods, err := runtime.ListPodSandbox(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.Equal(t, id, pods[0].Id)
	code, _ := get(t, crio.Socket(), "/info")
	assert.Equal(t, http.StatusOK, code)
}
