package main

import (
	"context"
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
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A handover to the other data path loses no more than one to the same path: calls under way end as they would have, an
// endless stream ends once, and memory, recording and events go on. Issue 43: four places promise it.
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
