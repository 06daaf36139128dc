package server

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// onBothDataPaths runs a test with either data path, and native ids.
func onBothDataPaths(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			test(t, newNode(t, func(c *config.Config) { c.DataPath, c.IDs = path, config.NativeIDs }))
		})
	}
}

// beside makes a container of runtime i without criproxy.
func (n *node) beside(i int, name string) string {
	n.Helper()
	cc := connectTo(n, "unix:"+n.runtimes[i].Path)
	pod := testkit.PodConfig(name)
	ran, err := runtimeapi.NewRuntimeServiceClient(cc).RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: pod})
	require.NoError(n, err)
	image := &runtimeapi.ImageSpec{Image: "busybox"}
	_, err = runtimeapi.NewImageServiceClient(cc).PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: image, SandboxConfig: pod})
	require.NoError(n, err)
	created, err := runtimeapi.NewRuntimeServiceClient(cc).CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: ran.GetPodSandboxId(), SandboxConfig: pod,
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: image},
	})
	require.NoError(n, err)
	return created.GetContainerId()
}

func (n *node) listed(i int) int {
	return len(n.runtimes[i].Calls("ListContainers")) + len(n.runtimes[i].Calls("StreamContainers"))
}

// Each such look-up was a list on each runtime. See issue 40.
func TestLookUpsOfUnknownIDsShareLists(t *testing.T) {
	t.Parallel()
	onBothDataPaths(t, func(t *testing.T, n *node) {
		n.run(0, "web", 1)
		n.run(1, "db", 1)
		n.known()
		began, before := time.Now(), []int{n.listed(0), n.listed(1)}
		var clients sync.WaitGroup
		for client := range 100 {
			clients.Go(func() {
				for i := range 2 {
					_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: fmt.Sprintf("%06x%06x", client, i)})
					assert.Equal(t, codes.NotFound, status.Code(err), "%v", err)
				}
			})
		}
		clients.Wait()
		for i := range n.runtimes {
			lists := n.listed(i) - before[i]
			took := time.Since(began) // taken last: a busy machine lengthens it and makes no lists
			// Four a second for look-ups, one for kubelet, and what was under way.
			assert.LessOrEqual(t, lists, int(took*5/time.Second)+5, "of 200 look-ups in %s", took)
		}
	})
}

func TestAContainerMadeBesideIsFoundWhileAnotherRuntimeHangs(t *testing.T) {
	t.Parallel()
	onBothDataPaths(t, func(t *testing.T, n *node) {
		n.run(1, "db", 1)
		n.known()
		n.runtimes[1].Freeze()
		defer n.runtimes[1].Thaw()
		ctx, cancel := context.WithTimeout(n.ctx(), testkit.Patience/2) // sooner than the budget of the list of the other runtime ends
		defer cancel()
		for i := range 5 {
			id := n.beside(0, fmt.Sprint("web", i))
			got, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			require.NoError(t, err)
			assert.Equal(t, id, got.GetStatus().GetId())
		}
	})
}
