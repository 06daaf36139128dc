package criadapter_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestSeccompProfilesAreUnderstoodOnTheOtherSide(t *testing.T) {
	for _, c := range []struct{ client, backend, in, want string }{
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: "runtime/default"`, `seccomp_profile_path: "runtime/default" seccomp {}`},
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: "docker/default"`, `seccomp_profile_path: "docker/default" seccomp {}`},
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: "unconfined"`, `seccomp_profile_path: "unconfined" seccomp {profile_type: Unconfined}`},
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: "localhost//var/p.json"`, `seccomp_profile_path: "localhost//var/p.json" seccomp {profile_type: Localhost localhost_ref: "/var/p.json"}`},
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: ""`, ``},
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: "something/else"`, `seccomp_profile_path: "something/else"`},
		{"runtime.v1alpha2", "runtime.v1", `seccomp_profile_path: "unconfined" seccomp {}`, `seccomp_profile_path: "unconfined" seccomp {}`},
		{"runtime", "runtime.v1", `seccomp_profile_path: "unconfined" readonly_rootfs: true`, `seccomp_profile_path: "unconfined" readonly_rootfs: true seccomp {profile_type: Unconfined}`},
		{"runtime.v1", "runtime.v1alpha2", `seccomp {}`, `seccomp {} seccomp_profile_path: "runtime/default"`},
		{"runtime.v1", "runtime.v1alpha2", `seccomp {profile_type: Localhost localhost_ref: "/p"}`, `seccomp {profile_type: Localhost localhost_ref: "/p"} seccomp_profile_path: "localhost//p"`},
		{"runtime.v1", "runtime", `seccomp {profile_type: Unconfined}`, `seccomp {profile_type: Unconfined} seccomp_profile_path: "unconfined"`},
		{"runtime.v1", "runtime.v1", `seccomp {profile_type: Unconfined}`, `seccomp {profile_type: Unconfined}`},
	} {
		var got, reply []byte
		cfg, err := criadapter.Config(criadapter.Options{})
		require.NoError(t, err)
		cc := front(t, muxtest.Dir(t), cfg, onlyVersion(c.backend, mirror(&got, &reply)))

		in, want := &runtimeapi.LinuxSandboxSecurityContext{}, &runtimeapi.LinuxSandboxSecurityContext{}
		require.NoError(t, prototext.Unmarshal([]byte(c.in), in))
		require.NoError(t, prototext.Unmarshal([]byte(c.want), want))
		request, err := proto.Marshal(&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: in}}})
		require.NoError(t, err)
		_, err = invoke(t, cc, "/"+c.client+".RuntimeService/RunPodSandbox", request)
		require.NoError(t, err)
		var run runtimeapi.RunPodSandboxRequest
		require.NoError(t, proto.Unmarshal(got, &run))
		assert.True(t, proto.Equal(want, run.GetConfig().GetLinux().GetSecurityContext()), "%s to %s: %s became %v", c.client, c.backend, c.in, run.GetConfig().GetLinux().GetSecurityContext())

		inC, wantC := &runtimeapi.LinuxContainerSecurityContext{}, &runtimeapi.LinuxContainerSecurityContext{}
		require.NoError(t, prototext.Unmarshal([]byte(c.in), inC))
		require.NoError(t, prototext.Unmarshal([]byte(c.want), wantC))
		request, err = proto.Marshal(&runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: inC}}})
		require.NoError(t, err)
		_, err = invoke(t, cc, "/"+c.client+".RuntimeService/CreateContainer", request)
		require.NoError(t, err)
		var create runtimeapi.CreateContainerRequest
		require.NoError(t, proto.Unmarshal(got, &create))
		assert.True(t, proto.Equal(wantC, create.GetConfig().GetLinux().GetSecurityContext()), "%s to %s: %s", c.client, c.backend, c.in)
	}
}
