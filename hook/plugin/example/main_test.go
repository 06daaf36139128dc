package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/plugins"
)

func TestMain(m *testing.M) {
	if os.Getenv("EXAMPLE") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// The test runs the example as a process, and calls it as criproxy does, in front of a runtime in memory.
func TestTheExampleSetsCPUSharesByPriority(t *testing.T) {
	dir, err := os.MkdirTemp("", "example") // the path of a socket is short
	require.NoError(t, err)
	defer os.RemoveAll(dir) // the error would change nothing
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	self, err := os.Executable()
	require.NoError(t, err)
	example := exec.CommandContext(ctx, self, filepath.Base(dir)) // criproxy must find its socket all the same
	example.Dir = filepath.Dir(dir)
	example.Env, example.Stderr = append(os.Environ(), "EXAMPLE=1"), os.Stderr
	require.NoError(t, example.Start())
	file := filepath.Join(dir, "priority.json")
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 30*time.Second, 5*time.Millisecond)

	rt := fakecri.New(fakecri.Config{})
	l, err := net.Listen("unix", filepath.Join(dir, "r"))
	require.NoError(t, err)
	served := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	go func() { served <- rt.ServeOn(serving, l) }()
	defer func() { stop(); assert.NoError(t, <-served) }()
	cc, err := grpc.NewClient("unix:"+filepath.Join(dir, "r"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
	require.NoError(t, err)
	defer cc.Close() // the error would change nothing

	cfg, err := criadapter.Hooks(criadapter.HookOptions{})
	require.NoError(t, err)
	cfg.Folder = dir
	plugins, err := plugins.New(cfg)
	require.NoError(t, err)
	defer plugins.Close()
	client := runtimeapi.NewRuntimeServiceClient(plugins.Around(cc))
	_, err = runtimeapi.NewImageServiceClient(cc).PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)

	for priority, want := range map[string]int64{"low": 2, "high": 8192, "": 100} {
		config := &runtimeapi.PodSandboxConfig{
			Metadata:    &runtimeapi.PodSandboxMetadata{Name: "web" + priority, Namespace: "default"},
			Annotations: map[string]string{"example.org/priority": priority},
		}
		ran, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
		require.NoError(t, err)
		_, err = client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: ran.GetPodSandboxId(), SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "busybox"},
			Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 100, CpusetCpus: "0"}},
		}})
		require.NoError(t, err)
		calls := rt.Calls("CreateContainer")
		r := calls[len(calls)-1].Request.(*runtimeapi.CreateContainerRequest).GetConfig().GetLinux().GetResources()
		assert.Equal(t, want, r.GetCpuShares(), priority)
		assert.Equal(t, "0", r.GetCpusetCpus())
	}

	require.NoError(t, example.Process.Signal(syscall.SIGTERM))
	require.NoError(t, example.Wait())
	assert.NoFileExists(t, file)
	assert.NoFileExists(t, filepath.Join(dir, "priority.sock"))
}
