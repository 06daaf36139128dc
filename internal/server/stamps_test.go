package server

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// kubelet asks for the status of each pod again and again, and the answer has the time at which it was given. Statistics have
// other numbers each time.
func TestTheTimeOfAnAnswerIsNoReasonToWriteTheStateFile(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{Config: fakecri.Config{PodStatusHasContainers: true}, backend: config.Backend{Name: "beta.io"}})
	p := n.run(1, "db", 1)
	n.known()
	file := stateFile(n.cfg, n.cfg.Backends[1]).Path
	written := func() os.FileInfo {
		n.proxy.set.Save()
		info, err := os.Stat(file)
		require.NoError(t, err)
		return info
	}
	same := func(a, b os.FileInfo) bool { // after two writes, a file may have the number of the first one
		return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
	}
	ask := func() {
		status, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
		require.NoError(t, err)
		require.NotZero(t, status.GetTimestamp())
		_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
		require.NoError(t, err)
		stats, err := n.ListContainerStats(n.ctx(), &runtimeapi.ListContainerStatsRequest{})
		require.NoError(t, err)
		require.Len(t, stats.Stats, 1)
	}
	testkit.Eventually(t, "no call is written", func() bool { // what criproxy asks by itself after the first calls may be news
		before := written()
		ask()
		return same(before, written())
	})

	before := written()
	_, err := n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
	require.NoError(t, err)
	ask()
	assert.False(t, same(before, written()), "a change is written")
}
