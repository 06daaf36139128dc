package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestTheZeroConfigIsAReadyRuntime(t *testing.T) {
	c := start(t, fakecri.Config{})
	got, err := c.Status(t.Context(), &runtimeapi.StatusRequest{})
	require.NoError(t, err)
	assertProto(t, parse(t, `status {conditions {type: "RuntimeReady" status: true} conditions {type: "NetworkReady" status: true}}
		runtime_handlers {features {recursive_read_only_mounts: true user_namespaces: true}}
		runtime_handlers {name: "runc" features {recursive_read_only_mounts: true user_namespaces: true}}
		features {supplemental_groups_policy: true user_namespaces_host_network: true mount_options: true}`,
		&runtimeapi.StatusResponse{}), got)
	config, err := c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	require.NoError(t, err)
	assert.Equal(t, runtimeapi.CgroupDriver_SYSTEMD, config.GetLinux().GetCgroupDriver())
}
