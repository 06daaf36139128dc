package testbed_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/exec"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func contains(b []byte, s string) bool { return bytes.Contains(b, []byte(s)) }

func TestBothLinesRunSideBySide(t *testing.T) {
	older, newer := start(t, runtimes.Config{Version: "1.7"}), start(t, runtimes.Config{Version: "2.4"})
	for b, want := range map[*bench]string{older: "v1.7.", newer: "v2.4."} {
		v, err := b.runtime.Version(t.Context(), "")
		require.NoError(t, err)
		assert.Equal(t, "containerd", v.RuntimeName)
		assert.Equal(t, "v1", v.RuntimeApiVersion)
		assert.True(t, strings.HasPrefix(v.RuntimeVersion, want), v.RuntimeVersion)
	}
	_, oldPod, _ := older.run(t, "one")
	_, newPod, _ := newer.run(t, "one")
	assert.NotEqual(t, older.Bridge(), newer.Bridge())
	for b, want := range map[*bench]string{older: oldPod, newer: newPod} {
		pods, err := b.runtime.ListPodSandbox(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, pods, 1)
		assert.Equal(t, want, pods[0].Id)
	}
}

// alphaVersion asks for the version in the words of runtime.v1alpha2, which has the same messages.
func alphaVersion(ctx context.Context, socket string) (*runtimeapi.VersionResponse, error) {
	conn, err := runtimes.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp := new(runtimeapi.VersionResponse)
	err = conn.Invoke(ctx, "/runtime.v1alpha2.RuntimeService/Version", &runtimeapi.VersionRequest{}, resp)
	return resp, err
}

func TestOnlyTheOldLineSpeaksV1alpha2(t *testing.T) {
	older, newer := start(t, runtimes.Config{Version: "1.7"}), start(t, runtimes.Config{Version: "2.4"})
	resp, err := alphaVersion(t.Context(), older.Socket())
	require.NoError(t, err)
	assert.Equal(t, "v1alpha2", resp.RuntimeApiVersion)
	_, err = alphaVersion(t.Context(), newer.Socket())
	assert.Equal(t, codes.Unimplemented, status.Code(err), err)
}

func TestPodsOnTheBridgeAreReached(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		_, podID, _ := b.run(t, "web", "serve", "8080")
		pod, err := b.runtime.PodSandboxStatus(t.Context(), podID, false)
		require.NoError(t, err)
		addr, err := netip.ParseAddr(pod.Status.Network.Ip)
		require.NoError(t, err)
		assert.True(t, netip.MustParsePrefix("198.18.0.0/15").Contains(addr), addr)
		var body []byte
		client := &http.Client{Timeout: 5 * time.Second}
		require.Eventually(t, func() bool {
			resp, err := client.Post("http://"+addr.String()+":8080/hello", "text/plain", strings.NewReader("there"))
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, _ = io.ReadAll(resp.Body)
			return true
		}, 10*time.Second, 20*time.Millisecond)
		assert.Equal(t, "POST /hello\nthere", string(body))
	})
}

func TestPodsOnTheHostNetworkNeedNoBridge(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		id := b.pod(t, runtimes.OnHostNetwork(b.PodConfig("host")), "")
		pod, err := b.runtime.PodSandboxStatus(t.Context(), id, false)
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.NamespaceMode_NODE, pod.Status.Linux.Namespaces.Options.Network)
		assert.Empty(t, pod.Status.Network.GetIp())
	})
}

func TestContainersRunExecAndLog(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		pod, podID, id := b.run(t, "talk", "print", "hello", "there", "then", "warn", "careful", "then", "sleep")
		b.log(t, pod, "app", "hello there\n") // the order of the two streams is not guaranteed
		log := b.log(t, pod, "app", "careful")
		assert.Contains(t, log, "stdout F hello there\n")
		assert.Contains(t, log, "stderr F careful\n")

		out, _, err := b.runtime.ExecSync(t.Context(), id, []string{"app", "file", "/etc/image"}, 10*time.Second)
		require.NoError(t, err)
		assert.Equal(t, "testbed/app:1\n", string(out))
		_, _, err = b.runtime.ExecSync(t.Context(), id, []string{"app", "exit", "7"}, 10*time.Second)
		var exit exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 7, exit.ExitStatus())

		stats, err := b.runtime.ContainerStats(t.Context(), id)
		require.NoError(t, err)
		assert.Positive(t, stats.Memory.WorkingSetBytes.GetValue())
		podStats, err := b.runtime.PodSandboxStats(t.Context(), podID)
		require.NoError(t, err)
		require.Len(t, podStats.Linux.Containers, 1)
		assert.Equal(t, "eth0", podStats.Linux.Network.DefaultInterface.Name)

		begun := time.Now()
		require.NoError(t, b.runtime.StopContainer(t.Context(), id, 60))
		assert.Less(t, time.Since(begun), 30*time.Second, "it ends at SIGTERM")
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, b.status(t, id).State)
		assert.Zero(t, b.status(t, id).ExitCode)
	})
}

func TestHandlersAreChosenByName(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		id := b.pod(t, b.PodConfig("other"), "alt")
		pod, err := b.runtime.PodSandboxStatus(t.Context(), id, false)
		require.NoError(t, err)
		assert.Equal(t, "alt", pod.Status.RuntimeHandler)
		_, err = b.runtime.RunPodSandbox(t.Context(), b.PodConfig("none"), "kata")
		assert.ErrorContains(t, err, "kata")
	})
}

func TestPodsMayAskForASeccompProfile(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		profile := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		pod := b.PodConfig("strict")
		pod.Linux.SecurityContext.Seccomp = profile
		podID := b.pod(t, pod, "")
		config := runtimes.ContainerConfig("app", b.reg.Image("testbed/app:1"))
		config.Linux.SecurityContext.Seccomp = profile
		id := b.container(t, podID, pod, config)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, b.status(t, id).State)
	})
}

func TestExtraTOMLIsMerged(t *testing.T) {
	for version, extra := range map[string]string{
		"1.7": "[plugins.'io.containerd.grpc.v1.cri']\nmax_container_log_line_size = 10",
		"2.4": "[plugins.'io.containerd.cri.v1.runtime']\nmax_container_log_line_size = 10",
	} {
		t.Run(version, func(t *testing.T) {
			b := start(t, runtimes.Config{Version: version, ExtraTOML: extra})
			pod, _, _ := b.run(t, "lines", "print", "0123456789abcdef", "then", "sleep")
			assert.Contains(t, b.log(t, pod, "app", "abcdef"), "stdout P 0123456789\n")
		})
	}
}

func TestContainersOutliveACrash(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		pod, podID, id := b.run(t, "survivor", "tick")
		b.log(t, pod, "app", "tick 1\n")
		first, _ := b.PID()
		before := pidOf(t, b, id)
		require.NoError(t, b.Kill())
		_, alive := b.PID()
		require.False(t, alive)
		_, err := b.runtime.Version(t.Context(), "")
		require.Equal(t, codes.Unavailable, status.Code(err), err)
		require.NoError(t, b.Start(t.Context()))
		// Between attempts to connect, the client pauses and fails calls at once.
		require.Eventually(t, func() bool {
			_, err := b.runtime.Version(t.Context(), "")
			return err == nil
		}, 10*time.Second, 20*time.Millisecond)

		second, _ := b.PID()
		assert.NotEqual(t, first, second)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, b.status(t, id).State)
		assert.Equal(t, before, pidOf(t, b, id), "it is the same process")
		_, _, err = b.runtime.ExecSync(t.Context(), id, []string{"app", "id"}, 10*time.Second)
		assert.NoError(t, err)
		assert.NoError(t, b.runtime.StopPodSandbox(t.Context(), podID))
	})
}

// pidOf returns the process id of a container, as its runtime sees it.
func pidOf(t *testing.T, b *bench, id string) int {
	t.Helper()
	pid, err := runtimes.PIDOf(t.Context(), b.runtime, id)
	require.NoError(t, err)
	require.Positive(t, pid)
	return pid
}

func TestAFrozenRuntimeIsSilentUntilThawed(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		require.NoError(t, b.Freeze())
		_, alive := b.PID()
		assert.True(t, alive)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := b.runtime.Version(ctx, "")
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err), err)
		require.NoError(t, b.Thaw())
		_, err = b.runtime.Version(t.Context(), "")
		assert.NoError(t, err)
	})
}

func TestAnotherProgramFindsTheInstance(t *testing.T) {
	b := start(t, runtimes.Config{})
	same, err := runtimes.Open(b.Dir)
	require.NoError(t, err)
	assert.Equal(t, b.Config, same.Config)
	want, _ := b.PID()
	got, alive := same.PID()
	assert.True(t, alive)
	assert.Equal(t, want, got)
	require.NoError(t, same.Terminate(t.Context()))
	_, alive = b.PID()
	assert.False(t, alive)
}

func TestStartFailsWithTheEndOfTheLog(t *testing.T) {
	bin := testbed.Require(t)
	_, err := runtimes.StartContainerd(t.Context(), runtimes.Config{
		Binaries: bin, Registry: "127.0.0.1:1", ExtraTOML: "required_plugins = ['io.containerd.none.v1.none']",
	})
	require.ErrorContains(t, err, "it has ended")
	assert.ErrorContains(t, err, "io.containerd.none.v1.none")
}
