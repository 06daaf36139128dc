package criadapter_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/hook/hookapi"
	"github.com/criproxy/criproxy/internal/plugins"
)

// answers is a runtime that answers each method with the same message.
type answers map[string]proto.Message

func (a answers) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	b, err := proto.Marshal(a[method])
	if err != nil {
		return err
	}
	return codec.Decode(reply, codec.NewFrame(b))
}

func (answers) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("no call here streams")
}

var hooks = sync.OnceValues(func() (plugins.Config, error) { return criadapter.Hooks(criadapter.HookOptions{}) })

func lookUp(t testing.TB, kind string, a answers) (proto.Message, error) {
	t.Helper()
	cfg, err := hooks()
	require.NoError(t, err)
	found, err := cfg.Lookup(t.Context(), a, kind, "1")
	if err != nil {
		return nil, err
	}
	return found.Message, nil
}

func statuses(info string) answers {
	verbose := map[string]string{"info": info}
	return answers{
		runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName: &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: "1"}, Info: verbose},
		runtimeapi.RuntimeService_ContainerStatus_FullMethodName:  &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: "1"}, Info: verbose},
		runtimeapi.RuntimeService_ListContainers_FullMethodName:   &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "1", PodSandboxId: "2"}}},
	}
}

// A runtime without a config in its verbose status, such as CRI-O, still returns the cgroup.
func TestAVerboseStatusWithoutAConfigHasTheCgroup(t *testing.T) {
	for info, want := range map[string]string{
		`{"runtimeSpec": {"linux": {"cgroupsPath": "/kubepods/pod1/abc"}}}`:                                 "/kubepods/pod1",
		`{"runtimeSpec": {"linux": {"cgroupsPath": "kubepods-pod1.slice:crio:abc"}}}`:                       "kubepods-pod1.slice",
		`{"config": {"linux": {"cgroup_parent": "/a"}}, "runtimeSpec": {"linux": {"cgroupsPath": "/b/c"}}}`: "/a",
		`{"config": {"linux": 5}}`: "",
		`no JSON`:                  "",
	} {
		m, err := lookUp(t, "sandbox", statuses(info))
		require.NoError(t, err)
		assert.Equal(t, want, m.(*hookapi.PodSandboxHookRequest).GetCgroupParent(), info)
	}
}

func TestAStatusOfNothingIsNotFound(t *testing.T) {
	for _, kind := range []string{"sandbox", "container"} {
		_, err := lookUp(t, kind, answers{
			runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName: &runtimeapi.PodSandboxStatusResponse{},
			runtimeapi.RuntimeService_ContainerStatus_FullMethodName:  &runtimeapi.ContainerStatusResponse{},
			runtimeapi.RuntimeService_ListContainers_FullMethodName:   &runtimeapi.ListContainersResponse{},
		})
		assert.ErrorContains(t, err, "there is no status of")
	}
}

// FuzzVerboseStatus checks that plugins get a valid message whatever the verbose status of a runtime
// has.
func FuzzVerboseStatus(f *testing.F) {
	f.Add(`{"config": {"envs": [{"key": "A", "value": "YQ=="}], "linux": {"resources": {"cpu_shares": 5}}}, "runtimeSpec": {"process": {"env": ["A=b", "C"]}, "linux": {"cgroupsPath": "a:b:c"}}}`)
	f.Add(`{"config": {"envs": {}, "linux": null}}`)
	f.Add(`{"config": {"envs": [{"key": "\ud800", "value": "/w=="}, null, 5], "linux": {"cgroup_parent": "/x", "overhead": {"cpu_period": "7"}}}}`)
	f.Fuzz(func(t *testing.T, info string) {
		for _, kind := range []string{"sandbox", "container"} {
			m, err := lookUp(t, kind, statuses(info))
			if err != nil {
				continue // the info is not UTF-8
			}
			_, err = proto.Marshal(m)
			assert.NoError(t, err)
		}
	})
}
