package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestVersionIsWhatKubeletWants(t *testing.T) {
	c := start(t, fakecri.Config{Name: "alpha", Version: "1.2.3"})
	got, err := c.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	assertProto(t, parse(t, `version: "0.1.0" runtime_name: "alpha" runtime_version: "1.2.3" runtime_api_version: "v1"`,
		&runtimeapi.VersionResponse{}), got)
}

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

func TestStatusSaysWhatTheConfigSays(t *testing.T) {
	c := start(t, fakecri.Config{
		Handlers:        []string{"runc", "kata"},
		HandlerFeatures: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true},
		Features:        &runtimeapi.RuntimeFeatures{},
		CgroupDriver:    runtimeapi.CgroupDriver_CGROUPFS,
		Conditions: []*runtimeapi.RuntimeCondition{
			{Type: "NetworkReady", Reason: "NoCNI"},
			{Type: "HasNoDeprecationWarnings", Status: true},
		},
	})
	got, err := c.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	require.NoError(t, err)
	assert.NotEmpty(t, got.GetInfo())
	got.Info = nil
	assertProto(t, parse(t, `status {conditions {type: "RuntimeReady" status: true} conditions {type: "NetworkReady" reason: "NoCNI"}
			conditions {type: "HasNoDeprecationWarnings" status: true}}
		runtime_handlers {features {user_namespaces: true}}
		runtime_handlers {name: "kata" features {user_namespaces: true}}
		runtime_handlers {name: "runc" features {user_namespaces: true}}
		features {}`, &runtimeapi.StatusResponse{}), got)
	config, err := c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	require.NoError(t, err)
	assert.Equal(t, runtimeapi.CgroupDriver_CGROUPFS, config.GetLinux().GetCgroupDriver())
}

func TestTheRuntimeRemembersThePodCIDR(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, err := c.UpdateRuntimeConfig(t.Context(), parse(t, `runtime_config {network_config {pod_cidr: "10.1.0.0/16"}}`,
		&runtimeapi.UpdateRuntimeConfigRequest{}))
	require.NoError(t, err)
	assert.Equal(t, "10.1.0.0/16", c.rt.PodCIDR())
}

func TestWhatARuntimeLacksItDoesNotKnow(t *testing.T) {
	c := start(t, fakecri.Config{Lacks: []string{"RuntimeConfig"}})
	_, err := c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	assertCode(t, codes.Unimplemented, err)
	assert.ErrorContains(t, err, "unknown method RuntimeConfig for service runtime.v1.RuntimeService")
	assert.Panics(t, func() { fakecri.New(fakecri.Config{Lacks: []string{"Typo"}}) })
}
