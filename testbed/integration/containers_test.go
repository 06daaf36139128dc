package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStatsAreThoseOfTheOwner(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		p := run(t, c, s, "stats")
		id := p.start(t)
		resp, err := c.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Equal(t, id, resp.Stats.Attributes.Id)
		assert.Equal(t, "app", resp.Stats.Attributes.Metadata.Name)
		assert.Positive(t, resp.Stats.Memory.WorkingSetBytes.GetValue())

		pod, err := c.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.id})
		require.NoError(t, err)
		assert.Equal(t, p.id, pod.Stats.Attributes.Id)
		assert.Equal(t, p.config.Metadata.Uid, pod.Stats.Attributes.Metadata.Uid)
		assert.Equal(t, "eth0", pod.Stats.Linux.Network.DefaultInterface.Name)
		require.Len(t, pod.Stats.Linux.Containers, 1)
		assert.Equal(t, id, pod.Stats.Linux.Containers[0].Attributes.Id)

		direct, err := s.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.back(t)})
		require.NoError(t, err)
		assert.Equal(t, p.back(t), direct.Stats.Attributes.Id)
	})
}

// memoryLimit returns the limit of a process's memory cgroup.
func memoryLimit(t testing.TB, pid int) string {
	t.Helper()
	return cgroupFile(t, pid, "memory", "memory.limit_in_bytes", "memory.max")
}

// cgroupFile returns the content of a file of a process's cgroup, whose name depends on the cgroup version.
func cgroupFile(t testing.TB, pid int, controller, v1, v2 string) string {
	t.Helper()
	const root = "/sys/fs/cgroup"
	var file string
	for line := range strings.Lines(cgroupOf(t, pid)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if cgroupV2(t) {
			file = filepath.Join(root, parts[2], v2)
		} else if slices.Contains(strings.Split(parts[1], ","), controller) {
			file = filepath.Join(root, controller, parts[2], v1)
		}
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(content)
}

// cgroupOf returns the cgroups of a process.
func cgroupOf(t testing.TB, pid int) string {
	t.Helper()
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	return string(groups)
}

func cgroupV2(t testing.TB) bool {
	t.Helper()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs("/sys/fs/cgroup", &fs))
	return fs.Type == unix.CGROUP2_SUPER_MAGIC
}
