package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestAThousandSubscribersGetEveryEvent(t *testing.T) {
	const subscribers = 1000
	p := startedProcess(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*testkit.Patience)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	var got sync.WaitGroup
	for i := range subscribers {
		if i%50 == 49 {
			testkit.Eventually(t, "those before are subscribed at both", func() bool {
				return len(p.runtimes[0].Calls("GetContainerEvents")) >= i && len(p.runtimes[1].Calls("GetContainerEvents")) >= i
			})
		}
		stream, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		require.NoError(t, err)
		got.Go(func() {
			for range 2 {
				if _, err := stream.Recv(); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	testkit.Eventually(t, "all are subscribed at both", func() bool {
		return len(p.runtimes[0].Calls("GetContainerEvents")) >= subscribers && len(p.runtimes[1].Calls("GetContainerEvents")) >= subscribers
	})
	for i, target := range []string{"", "beta.io"} {
		_, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podOn(target, fmt.Sprint("p", i))})
		require.NoError(t, err)
	}
	got.Wait()
	cancel()
}

func TestAProcessWithoutFileDescriptorsServesAgain(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	pid := p.launch().Process.Pid
	n := uint64(testkit.OpenFiles(t, pid) + 20)
	few := unix.Rlimit{Cur: n, Max: n}
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	_, err := client.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	var all []net.Conn
	for range 100 {
		c, err := net.Dial("unix", p.front)
		require.NoError(t, err)
		all = append(all, c)
	}
	_, err = client.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err, "a connected client is served")
	for _, c := range all {
		c.Close()
	}
	_, err = runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).Version(t.Context(), &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
}

// criproxy cannot know the length of a method's first reply, and a kubelet requests the status of
// all pods at once.
func TestHungStatusCallsLeaveMemoryForLists(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.env = append(os.Environ(), "GOMEMLIMIT=512MiB")
	for _, m := range p.runtimes {
		m.Fill(100)
		m.When(testkit.Hanging("PodSandboxStatus", "ContainerStatus"))
	}
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	images := runtimeapi.NewImageServiceClient(p.connect(p.front))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pods *runtimeapi.ListPodSandboxResponse
	testkit.Eventually(t, "both runtimes are there", func() (both bool) {
		var err error
		pods, err = client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		return len(pods.GetItems()) == 200
	})
	for _, pod := range pods.GetItems() {
		go func() {
			_, _ = client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.GetId()}) // hangs
		}()
	}
	hang := func(n int) bool {
		return len(p.runtimes[0].Calls("PodSandboxStatus"))+len(p.runtimes[1].Calls("PodSandboxStatus")) >= n
	}
	testkit.Eventually(t, "some of them hang", func() bool { return hang(2) })
	for range 20 {
		_, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		require.NoError(t, err)
		_, err = client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		_, err = images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		require.NoError(t, err)
	}
	testkit.Eventually(t, "all of them hang", func() bool { return hang(200) })
	cancel()
}
