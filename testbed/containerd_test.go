package testbed_test

import (
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

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestBothLinesRunSideBySide(t *testing.T) {
	older, newer := start(t, runtimes.Config{Version: "1.7"}), start(t, runtimes.Config{Version: "2.4"})
	for b, want := range map[*bench]string{older: "v1.7.", newer: "v2.4."} {
		v, err := b.runtime.Version(t.Context(), "")
		require.NoError(t, err)
		assert.Equal(t, "containerd", v.RuntimeName)
		assert.Equal(t, "v1", v.RuntimeApiVersion)
		assert.True(t, strings.HasPrefix(v.RuntimeVersion, want), v.RuntimeVersion)
	}
	oldPod, _ := older.run(t, "one")
	newPod, _ := newer.run(t, "one")
	assert.NotEqual(t, older.Bridge(), newer.Bridge())
	for b, want := range map[*bench]string{older: oldPod, newer: newPod} {
		pods, err := b.runtime.ListPodSandbox(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, pods, 1)
		assert.Equal(t, want, pods[0].Id)
	}
}

func TestPodsOnTheBridgeAreReached(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		podID, _ := b.run(t, "web", "serve", "8080")
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
