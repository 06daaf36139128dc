package fakecri_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestRunningContainersPrintToTheirLogs(t *testing.T) {
	c := start(t)
	logs := t.TempDir()
	c.pull("busybox")
	config := testkit.PodConfig("web")
	config.LogDirectory = logs
	pod, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	created, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(), Config: containerConfig("main", "busybox"), SandboxConfig: config,
	})
	require.NoError(t, err)
	c.rt.Print("early")
	id := c.begin(created.GetContainerId())
	c.rt.Print("tick")
	_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	require.NoError(t, err)
	c.rt.Print("late")
	log, err := os.ReadFile(filepath.Join(logs, "main/0.log"))
	require.NoError(t, err)
	assert.Regexp(t, `^\S+ stdout F tick\n$`, string(log))
}
