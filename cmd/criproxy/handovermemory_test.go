package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// listed returns the ids of the pods that a client sees.
func listed(t *testing.T, client runtimeapi.RuntimeServiceClient) (ids []string) {
	t.Helper()
	pods, err := client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	for _, one := range pods.GetItems() {
		ids = append(ids, one.GetId())
	}
	return ids
}

// The memory of the runtimes passes from process to process without a file.
func TestAHandoverDuringAnOutageForgetsNothing(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	text, err := os.ReadFile(p.config)
	require.NoError(t, err)
	state := filepath.Join(p.dir, "state")
	require.NoError(t, os.WriteFile(p.config, []byte(strings.Replace(string(text), "stateDir: "+state, "stateDir: none", 1)), 0o600))
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	ran, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podOn("beta.io", "db")})
	require.NoError(t, err)
	require.Equal(t, []string{ran.GetPodSandboxId()}, listed(t, client))
	_, err = client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: ran.GetPodSandboxId()})
	require.NoError(t, err)
	p.restartRuntime(true, false)
	for i := range 2 {
		p.handOver()
		for range 10 {
			assert.Equal(t, []string{ran.GetPodSandboxId()}, listed(t, client), "after handover %d", i)
		}
		_, err = client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: ran.GetPodSandboxId()}, grpc.WaitForReady(true))
		assert.NoError(t, err)
	}
	assert.NoFileExists(t, filepath.Join(state, "beta.io.known"))
	assert.Zero(t, p.logged("taking over the backends"), fmt.Sprint("see ", p.log))
}

// The first process creates a pod, the third one gets the call for the list, and the runtime's lists fail.
func TestAHandoverKnowsAPodThatIsBeingMade(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	require.Empty(t, listed(t, client))
	begun, goOn := make(chan struct{}), make(chan struct{})
	p.runtimes[1].When(func(ctx context.Context, method string, request any) error {
		if err := testkit.Failing(status.Error(codes.ResourceExhausted, "no lists today"), "ListPodSandbox", "StreamPodSandboxes")(ctx, method, request); err != nil {
			return err
		}
		return testkit.On(func(context.Context, string, any) error {
			close(begun)
			<-goOn
			return nil
		}, "RunPodSandbox")(ctx, method, request)
	})
	made := make(chan string, 1)
	go func() {
		ran, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podOn("beta.io", "db")})
		assert.NoError(t, err)
		made <- ran.GetPodSandboxId()
	}()
	<-begun
	for range 2 {
		p.handOver()
	}
	successor := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	require.Empty(t, listed(t, successor))
	close(goOn)
	id := <-made
	assert.Equal(t, []string{id}, listed(t, successor), "as soon as the old process has sent the note")
}

// After a handover an error named the process that had ended, and the last one left the files.
func TestTheLastProcessOwnsTheSockets(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	second := p.handOver()
	testkit.Eventually(t, "the sockets are its own", func() bool {
		out, err := bounded.Command(t, "criproxy", "-connect", p.runtimes[0].Path, "-listen", p.front, "-state-dir", "none", "-hooks", "none", "-logtostderr").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "already serves it")
		return strings.Contains(string(out), fmt.Sprintf("(process %d)", second))
	})
	p.end()
	testkit.Eventually(t, "the files are gone", func() bool {
		_, front := os.Stat(p.front)
		_, admin := os.Stat(config.AdminBeside(p.front))
		return os.IsNotExist(front) && os.IsNotExist(admin)
	})
}

// A process that was asked to stop while it took over said that it served, every other time. The one before it ended then, and
// nobody served.
func TestAProcessThatIsToStopDoesNotTakeOver(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	for range 8 {
		ready, says, err := os.Pipe()
		require.NoError(t, err)
		defer ready.Close() // it was only read
		cmd := bounded.Command(t, "criproxy-to-stop", "-config", p.config, "-logtostderr")
		cmd.ExtraFiles, cmd.Env = []*os.File{says}, append(os.Environ(), listen.SocketsVariable+"=[]", listen.ReadyVariable+"=3")
		log, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", log)
		assert.Contains(t, string(log), `"Stopping"`, "it has served")
		require.NoError(t, says.Close())
		word, err := io.ReadAll(ready)
		require.NoError(t, err)
		assert.Empty(t, string(word))
	}
}
