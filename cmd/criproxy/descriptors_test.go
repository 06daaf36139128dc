package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// mayOpen lets a process have n file descriptors. The hard limit stays, so that a later call can raise it again.
func mayOpen(t *testing.T, pid, n int) {
	t.Helper()
	var limit unix.Rlimit
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit))
	limit.Cur = min(uint64(n), limit.Max)
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
}

// An agent that made a client for each poll and closed none took the last descriptor: kubelet could not connect, no
// runtime could be dialled, and criproxy status did not answer. See issue 40.
func TestConnectionsOfAnAgentLeaveDescriptorsForAllElse(t *testing.T) {
	t.Parallel()
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			const files, leaked = 150, 300
			p := newProcess(t)
			agents := filepath.Join(p.dir, "agents.sock")
			p.write(fmt.Sprintf("dataPath: %s\nlisteners: [{path: %s, mode: \"0666\", access: [{methods: [read-only]}]}]\n", path, agents))
			pid := p.launch().Process.Pid
			mayOpen(t, pid, files)
			kubelet := p.connect(p.front)
			require.NoError(t, p.version(kubelet))
			watching, err := runtimeapi.NewRuntimeServiceClient(p.connect(agents)).GetContainerEvents(bounded.Context(t), &runtimeapi.GetEventsRequest{})
			require.NoError(t, err)
			testkit.Eventually(t, "it watches", func() bool { return len(p.runtimes[0].Calls("GetContainerEvents")) > 0 })
			var all []*grpc.ClientConn
			for range leaked {
				all = append(all, p.connect(agents))
				require.NoError(t, p.version(all[len(all)-1]), "a new one is served, however many are idle")
				assert.LessOrEqual(t, testkit.OpenFiles(t, pid), files-files/8)
			}
			require.NoError(t, p.version(all[0]), "the first one connects again")
			for range 100 { // these do not even begin
				c, err := net.Dial("unix", agents)
				require.NoError(t, err)
				defer c.Close()
			}
			require.NoError(t, p.version(p.connect(agents)))
			require.NoError(t, p.version(p.connect(p.front)), "kubelet can connect")
			require.NoError(t, p.version(kubelet))
			p.restartRuntime(true, true) // it can be dialled
			text, report := p.status()
			assert.Contains(t, text, "more connections than its share of file descriptors")
			of := map[string]int64{}
			for _, l := range report.Listeners {
				of[l.Path] = l.Connections.Ended
				assert.LessOrEqual(t, l.Connections.Now, l.Connections.Most, l.Path)
			}
			assert.Zero(t, of[p.front])
			assert.GreaterOrEqual(t, of[agents], int64(leaked-files/8))
			assert.Equal(t, 1, p.logged("A socket has as many connections"))
			assert.Positive(t, p.logged(fmt.Sprintf("(process %d)", os.Getpid())), "the log says who holds them")
			assert.InDelta(t, of[agents], p.scrape()[fmt.Sprintf("criproxy_listener_ended_connections_total{listener=%q}", agents)], 10)
			_, found, _ := p.doctor()
			assert.NotNil(t, finding(found, "connections than its share of file descriptors"))
			_, err = runtimeapi.NewRuntimeServiceClient(kubelet).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("late")})
			require.NoError(t, err)
			_, err = watching.Recv()
			require.NoError(t, err, "a connection with a call stays, however old")
		})
	}
}

func TestAConnectionWithACallIsNeverEndedForAnother(t *testing.T) {
	t.Parallel()
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			const files = 160 // 100 for the main socket, 20 for the other one
			p := newProcess(t)
			agents := filepath.Join(p.dir, "agents.sock")
			p.write(fmt.Sprintf("dataPath: %s\nlisteners: [{path: %s, mode: \"0666\", access: [{methods: [read-only]}]}]\n", path, agents))
			mayOpen(t, p.launch().Process.Pid, files)
			watched := func() int { return len(p.runtimes[0].Calls("GetContainerEvents")) }
			watch := func(socket string) (*grpc.ClientConn, runtimeapi.RuntimeService_GetContainerEventsClient) {
				cc, before := p.connect(socket), watched()
				s, err := runtimeapi.NewRuntimeServiceClient(cc).GetContainerEvents(bounded.Context(t), &runtimeapi.GetEventsRequest{})
				require.NoError(t, err)
				testkit.Eventually(t, "it watches", func() bool { return watched() > before })
				return cc, s
			}
			var streams []runtimeapi.RuntimeService_GetContainerEventsClient
			first, _ := watch(agents)
			for range 19 {
				_, s := watch(agents)
				streams = append(streams, s)
			}
			for range 102 { // more than its share
				_, s := watch(p.front)
				streams = append(streams, s)
			}
			testkit.AssertCode(t, codes.Unavailable, p.version(p.connect(agents)))
			first.Close()
			testkit.Eventually(t, "there is room", func() bool { return p.version(p.connect(agents)) == nil })
			client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			_, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("late")})
			require.NoError(t, err)
			for i, s := range streams {
				_, err := s.Recv()
				require.NoError(t, err, "%d", i)
			}
		})
	}
}

// Without a descriptor for it, the configuration counted as a new and empty one, which criproxy refused. See issue 40.
func TestAConfigurationThatCannotBeReadIsNotANewOne(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	pid := p.launch().Process.Pid
	require.NoError(t, os.Chmod(p.config, 0o600))
	few := testkit.OpenFiles(t, pid)
	mayOpen(t, pid, 0)
	p.write("")
	testkit.Eventually(t, "it is noticed", func() bool { return p.logged("The configuration cannot be read")+p.logged("was not reloaded") > 0 })
	assert.Zero(t, p.logged("was not reloaded"))
	p.write("eventInterval: 2s\n")
	time.Sleep(10 * time.Millisecond)
	mayOpen(t, pid, few+1000)
	testkit.Eventually(t, "it is read", func() bool { return p.logged("Reloaded the configuration") > 0 })
	_, report := p.status()
	assert.Empty(t, report.Config.Error)
	assert.Zero(t, report.Config.Failures)
	assert.Equal(t, 1, p.logged("The configuration cannot be read"), "once")
}
