package fakecri_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestAContainerLivesFromCreatedToExited(t *testing.T) {
	c := start(t, fakecri.Config{})
	pod := c.run("web")
	id := c.create(pod, "web", "main")
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_CREATED, c.containerStatus(id).GetState())

	c.begin(id)
	got := c.containerStatus(id)
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, got.GetState())
	assert.Positive(t, got.GetStartedAt())
	assert.Zero(t, got.GetFinishedAt())
	_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	assertCode(t, codes.Unknown, err)

	_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30})
	require.NoError(t, err)
	got = c.containerStatus(id)
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, got.GetState())
	assert.EqualValues(t, 143, got.GetExitCode(), "it had time to heed SIGTERM")
	assert.Equal(t, "Error", got.GetReason())
	assert.Greater(t, got.GetFinishedAt(), got.GetStartedAt())

	_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	require.NoError(t, err)
	assert.EqualValues(t, 143, c.containerStatus(id).GetExitCode(), "a second stop changes nothing")
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	assertCode(t, codes.NotFound, err)
}

func TestAContainerExitsByItself(t *testing.T) {
	c := start(t, fakecri.Config{})
	pod, id := c.running("web")
	require.NoError(t, c.rt.Exit(id, 0))
	assert.Equal(t, "Completed", c.containerStatus(id).GetReason())
	assertCode(t, codes.Unknown, c.rt.Exit(id, 0))
	assertCode(t, codes.NotFound, c.rt.Exit("nothing", 0))

	second := c.begin(c.create(pod, "web", "second"))
	require.NoError(t, c.rt.Exit(second, 3))
	assert.EqualValues(t, 3, c.containerStatus(second).GetExitCode())
	assert.Equal(t, "Error", c.containerStatus(second).GetReason())
}

func TestListsNameTheConfigsImageStatusesItsTag(t *testing.T) {
	c := start(t, fakecri.Config{})
	image := c.pull("busybox")
	pod := c.run("web")
	config := containerConfig("main", image)
	config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/host"}}
	config.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		RunAsUser: &runtimeapi.Int64Value{Value: 1000}, SupplementalGroups: []int64{5},
	}}
	reply, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: podConfig("web")})
	require.NoError(t, err)
	id := reply.GetContainerId()

	digest := c.rt.Images()[0].GetRepoDigests()[0]
	created := fmt.Sprint(c.rt.Containers()[0].GetCreatedAt())
	assertProto(t, parse(t, `id: "`+id+`" pod_sandbox_id: "`+pod+`" metadata {name: "main"} created_at: `+created+`
		image {image: "`+image+`" user_specified_image: "`+image+`"} image_ref: "`+image+`" image_id: "`+image+`"
		labels {key: "container" value: "main"}`, &runtimeapi.Container{}), c.rt.Containers()[0])
	assertProto(t, parse(t, `id: "`+id+`" metadata {name: "main"} created_at: `+created+`
		image {image: "docker.io/library/busybox:latest"} image_ref: "`+digest+`" image_id: "`+image+`"
		labels {key: "container" value: "main"} log_path: "/var/log/pods/web/main/0.log" stop_signal: SIGNAL_SIGTERM
		mounts {container_path: "/data" host_path: "/host"} user {linux {uid: 1000 supplemental_groups: 5}}`,
		&runtimeapi.ContainerStatus{}), c.containerStatus(id))

	_, err = c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	require.NoError(t, err)
	got := c.containerStatus(id)
	assert.Equal(t, image, got.GetImage().GetImage(), "of an image that is gone, the id is left")
	assert.Equal(t, image, got.GetImageRef())
}

func TestAContainerNeedsItsImage(t *testing.T) {
	c := start(t, fakecri.Config{})
	pod := c.run("web")
	req := &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("main", "absent"), SandboxConfig: podConfig("web")}
	_, err := c.CreateContainer(t.Context(), req)
	assertCode(t, codes.NotFound, err)

	c.pull("absent")
	req.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", Image: &runtimeapi.ImageSpec{Image: "volume"}}}
	_, err = c.CreateContainer(t.Context(), req)
	assertCode(t, codes.NotFound, err)

	c.pull("volume")
	_, err = c.CreateContainer(t.Context(), req)
	require.NoError(t, err)
}

func TestAContainerNeedsMetadataAndAReadyPod(t *testing.T) {
	c := start(t, fakecri.Config{})
	c.pull("busybox")
	pod := c.run("web")
	create := func(pod string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
		_, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: sandbox})
		return err
	}
	assertCode(t, codes.NotFound, create("7f", containerConfig("main", "busybox"), podConfig("web")))
	assertCode(t, codes.Unknown, create(pod, &runtimeapi.ContainerConfig{}, podConfig("web")))
	assertCode(t, codes.Unknown, create(pod, containerConfig("main", "busybox"), nil))
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assertCode(t, codes.Unknown, create(pod, containerConfig("main", "busybox"), podConfig("web")))
}

func TestAContainersNameIsReservedUntilItIsRemoved(t *testing.T) {
	c := start(t, fakecri.Config{})
	pod := c.run("web")
	id := c.create(pod, "web", "main")
	again := &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("main", "busybox"), SandboxConfig: podConfig("web")}
	_, err := c.CreateContainer(t.Context(), again)
	assertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, id)
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id[:40]})
	require.NoError(t, err)
	_, err = c.CreateContainer(t.Context(), again)
	assert.NoError(t, err)
}
