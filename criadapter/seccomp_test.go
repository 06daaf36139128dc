package criadapter_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
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
		r := newRelay(t, criadapter.Options{}, c.backend)
		for method, request := range map[string]proto.Message{"RunPodSandbox": &runtimeapi.RunPodSandboxRequest{}, "CreateContainer": &runtimeapi.CreateContainerRequest{}} {
			of := func(context string) proto.Message {
				m := request.ProtoReflect().New().Interface()
				require.NoError(t, prototext.Unmarshal([]byte("config {linux {security_context {"+context+"}}}"), m))
				return m
			}
			got := of("")
			r.passes(t, "/"+c.client+".RuntimeService/"+method, of(c.in), got)
			assert.True(t, proto.Equal(of(c.want), got), "%s to %s: %s became %v", c.client, c.backend, c.in, got)
		}
	}
}
