package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
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

// The caches of the runtimes pass from process to process without a file.
func TestAHandoverDuringAnOutageForgetsNothing(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	text := readFile(t, p.config)
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

// A handover to the other data path loses no more than one to the same path: calls under way end as they would have, an
// endless stream ends once, and cache, recording and events go on. Issue 43: four places promise it.
func TestAHandoverToTheOtherDataPathLosesNothing(t *testing.T) {
	t.Parallel()
	for _, way := range [][2]string{{config.OwnPath, config.GRPCPath}, {config.GRPCPath, config.OwnPath}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) {
			t.Parallel()
			p := newProcess(t)
			p.write("dataPath: " + way[0] + "\n")
			p.launch()
			cc := p.connect(p.front)
			client := runtimeapi.NewRuntimeServiceClient(cc)
			sandbox, _ := p.runPod("web", "beta.io")
			_, container := p.runPod("ends", "beta.io")
			_, session := p.runPod("shell", "")
			is := func(path string) {
				t.Helper()
				_, r := p.status()
				assert.Equal(t, path == config.GRPCPath, r.DataPath == config.GRPCPath, "the data path is %q", r.DataPath)
			}
			is(way[0])
			_, err := client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
			require.NoError(t, err)

			// Under way are a call for each runtime, one of them a command in a container, a pod that is being made, and two endless streams.
			begun, goOn := make(chan string, 3), make(chan struct{})
			for _, rt := range p.runtimes {
				rt.When(testkit.On(func(_ context.Context, method string, _ any) error {
					begun <- method
					<-goOn
					return nil
				}, "ExecSync", "StopContainer", "RunPodSandbox"))
			}
			executed, stopped, made := make(chan string, 1), make(chan error, 1), make(chan string, 1)
			go func() {
				reply, err := client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: session, Cmd: []string{"echo", "still here"}})
				assert.NoError(t, err)
				executed <- string(reply.GetStdout())
			}()
			go func() {
				_, err := client.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: container})
				stopped <- err
			}()
			go func() {
				ran, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podOn("beta.io", "late")})
				assert.NoError(t, err)
				made <- ran.GetPodSandboxId()
			}()
			for range 3 {
				<-begun
			}
			follows := func() grpc.ClientStream {
				t.Helper()
				cs, err := cc.NewStream(bounded.Context(t), &grpc.StreamDesc{ServerStreams: true}, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, grpc.ForceCodecV2(codec.Raw), grpc.WaitForReady(true))
				require.NoError(t, err)
				require.NoError(t, cs.SendMsg(&codec.Frame{}))
				require.NoError(t, cs.CloseSend())
				return cs
			}
			endless := follows()
			for i, rt := range p.runtimes {
				require.NoError(t, rt.WaitSubscribers(bounded.Context(t), 1), "runtime %d", i)
			}
			p.write("dataPath: " + way[1] + "\n")
			p.handOver()
			is(way[1])

			for err = nil; err == nil; {
				err = endless.RecvMsg(&codec.Frame{})
			}
			assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			again := follows()
			// The old process, which still has calls, leaves the file to the new one. It called it wrong.
			reloads := p.logged("Reloaded the configuration") // one, if the old process had noticed the file before it handed over
			p.write("dataPath: " + way[1] + "\nlistBudget: 3s\n")
			testkit.Eventually(t, "the new process has read the file", func() bool { return p.logged("Reloaded the configuration") == reloads+1 })
			// A new connection reaches the new process, also while the old one has calls.
			pods, err := runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			assert.Len(t, pods.GetItems(), 3)
			for _, rt := range p.runtimes {
				rt.When(nil)
			}
			close(goOn)
			assert.Equal(t, "still here\n", <-executed)
			assert.NoError(t, <-stopped)
			late := <-made
			assert.True(t, strings.HasPrefix(late, "beta.io__"), late)
			got := &codec.Frame{}
			require.NoError(t, again.RecvMsg(got), "the new stream has the events of what was under way")

			// The new process knows what the old one did, without a runtime to ask.
			p.restartRuntime(true, false)
			_, err = client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox}, grpc.WaitForReady(true))
			assert.NoError(t, err)
			ids := listed(t, client)
			assert.Subset(t, ids, []string{sandbox, late})
			assert.Len(t, ids, 4)
			for _, method := range []string{"ExecSync", "StopContainer", "RunPodSandbox"} {
				testkit.Eventually(t, "the end of "+method+" is recorded", func() bool {
					for _, end := range p.endings("/runtime.v1.RuntimeService/" + method) {
						if end == "begun" {
							return false
						}
					}
					return true
				})
			}
			assert.Equal(t, []string{capture.Up, capture.Gone}, whats(p.events()))
			want := []string{capture.Serving, capture.Reloaded, capture.HandedOver, capture.Reloaded}
			assert.Equal(t, slices.Delete(want, 1, 2-reloads), whats(p.happened("")))
			p.end()
			assert.Zero(t, p.logged("was not reloaded"), "see %s", p.log)
		})
	}
}
