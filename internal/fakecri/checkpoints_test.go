package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestAPodComesBackFromItsCheckpoint(t *testing.T) {
	c := start(t, fakecri.Config{Checkpoints: true})
	pod, id := c.running("web")
	c.begin(c.create(pod, "web", "side"))
	_, other := c.running("other")
	_, err := c.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: "/c"})
	require.NoError(t, err)
	_, err = c.CheckpointPod(t.Context(), &runtimeapi.CheckpointPodRequest{PodSandboxId: pod, OutputPath: "/p", ContainerIds: []string{other}})
	assertCode(t, codes.InvalidArgument, err)
	_, err = c.CheckpointPod(t.Context(), &runtimeapi.CheckpointPodRequest{PodSandboxId: pod, OutputPath: "/p", ContainerIds: []string{id}})
	require.NoError(t, err)

	restore := &runtimeapi.RestorePodRequest{
		CheckpointPath: "/p", Config: podConfig("again"),
		ContainerConfigs: []*runtimeapi.ContainerConfig{containerConfig("main", "busybox"), containerConfig("side", "busybox")},
	}
	reply, err := c.RestorePod(t.Context(), restore)
	require.NoError(t, err)
	require.Len(t, reply.GetRestoredContainers(), 1, "the checkpoint has one of them")
	assert.Equal(t, "main", reply.GetRestoredContainers()[0].GetName())
	c.begin(reply.GetRestoredContainers()[0].GetContainerId())
	assert.Equal(t, "again", c.podStatus(reply.GetPodSandboxId()).GetMetadata().GetName())

	restore.CheckpointPath = "/nothing"
	_, err = c.RestorePod(t.Context(), restore)
	assertCode(t, codes.NotFound, err)
	restore.CheckpointPath, restore.Config = "/p", podConfig("third")
	restore.ContainerConfigs[0].Image.Image = "absent"
	_, err = c.RestorePod(t.Context(), restore)
	assertCode(t, codes.NotFound, err)
	assert.Len(t, c.rt.Pods(), 3, "a pod that cannot be restored leaves nothing behind")
}
