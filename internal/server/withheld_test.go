package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// kubelet looks credentials up for the name that it knows, and not for the registry that follows the prefix.
func TestOnlyATrustedRuntimeGetsTheCredentialsOfAPull(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}},
		machineConfig{backend: config.Backend{Name: "trusted.io", Credentials: true}})
	for i, want := range []string{"me", "", "me"} {
		_, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: n.image(i, "busybox")}, Auth: &runtimeapi.AuthConfig{Username: "me"},
		})
		require.NoError(t, err)
		pulls := n.runtimes[i].Calls("PullImage")
		require.Len(t, pulls, 1)
		assert.Equal(t, want, pulls[0].Request.(*runtimeapi.PullImageRequest).GetAuth().GetUsername(), n.cfg.Backends[i].Name)
	}
}

func TestTheLogNamesACgroupDriverThatDiffers(t *testing.T) {
	t.Parallel()
	newNode(t, nil, machineConfig{Config: fakecri.Config{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}},
		machineConfig{Config: fakecri.Config{CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD}, backend: config.Backend{Name: "driver.io"}})
	testkit.Eventually(t, "the log says so", func() bool {
		return strings.Contains(strings.Join(testkit.LogLines("driver.io"), "\n"), "backend driver.io uses the cgroup driver systemd, the primary cgroupfs")
	})
}
