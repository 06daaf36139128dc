package criadapter_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// flags writes the NamespaceOption of v1alpha1: host_network, host_pid and
// host_ipc.
func flags(host ...bool) []byte {
	var b []byte
	for i, on := range host {
		if on {
			b = protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType)
			b = protowire.AppendVarint(b, 1)
		}
	}
	return b
}

// inField wraps b as the content of the fields with these numbers, outermost first.
func inField(b []byte, numbers ...protowire.Number) []byte {
	for i := len(numbers) - 1; i >= 0; i-- {
		b = protowire.AppendBytes(protowire.AppendTag(nil, numbers[i], protowire.BytesType), b)
	}
	return b
}

const (
	pod       = runtimeapi.NamespaceMode_POD
	container = runtimeapi.NamespaceMode_CONTAINER
	node      = runtimeapi.NamespaceMode_NODE
)

func TestNamespacesOfV1alpha1ArriveRight(t *testing.T) {
	for _, c := range []struct {
		host []bool // network, pid, ipc
		want *runtimeapi.NamespaceOption
	}{
		// pid false is CONTAINER, which is what kubelet 1.10 sends for the same
		// pod. The original CRI Proxy made it POD.
		{[]bool{false, false, false}, &runtimeapi.NamespaceOption{Network: pod, Pid: container, Ipc: pod}},
		{[]bool{true, false, false}, &runtimeapi.NamespaceOption{Network: node, Pid: container, Ipc: pod}},
		{[]bool{false, true, false}, &runtimeapi.NamespaceOption{Network: pod, Pid: node, Ipc: pod}},
		{[]bool{true, true, true}, &runtimeapi.NamespaceOption{Network: node, Pid: node, Ipc: node}},
	} {
		// A v1alpha1 client in front of a v1 runtime.
		var got, reply []byte
		cfg, err := criadapter.Config(criadapter.Options{})
		require.NoError(t, err)
		only := func(version string) muxtest.Handler { return onlyVersion(version, mirror(&got, &reply)) }
		cc := front(t, muxtest.Dir(t), cfg, only("runtime.v1"))

		// RunPodSandboxRequest.config.linux.security_context.namespace_options
		_, err = invoke(t, cc, "/runtime.RuntimeService/RunPodSandbox", inField(flags(c.host...), 1, 8, 2, 1))
		require.NoError(t, err)
		var run runtimeapi.RunPodSandboxRequest
		require.NoError(t, proto.Unmarshal(got, &run))
		assert.True(t, proto.Equal(c.want, run.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()), "%v: %v", c.host, &run)

		// CreateContainerRequest.config.linux.security_context.namespace_options
		_, err = invoke(t, cc, "/runtime.RuntimeService/CreateContainer", inField(flags(c.host...), 2, 15, 2, 3))
		require.NoError(t, err)
		var create runtimeapi.CreateContainerRequest
		require.NoError(t, proto.Unmarshal(got, &create))
		assert.True(t, proto.Equal(c.want, create.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()), "%v: %v", c.host, &create)

		// And back, in a status, where v1 has more modes than v1alpha1 can say.
		reply, err = proto.Marshal(&runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: c.want}},
		}})
		require.NoError(t, err)
		answer, err := invoke(t, cc, "/runtime.RuntimeService/PodSandboxStatus", nil)
		require.NoError(t, err)
		// PodSandboxStatusResponse.status.linux.namespaces.options
		assert.Equal(t, inField(flags(c.host...), 1, 6, 1, 2), answer, "%v", c.host)

		// A v1 client in front of a v1alpha1 runtime.
		reply = nil
		cc = front(t, muxtest.Dir(t), cfg, only("runtime"))
		request, err := proto.Marshal(&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: c.want},
		}}})
		require.NoError(t, err)
		_, err = invoke(t, cc, runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, request)
		require.NoError(t, err)
		assert.Equal(t, inField(flags(c.host...), 1, 8, 2, 1), got, "%v", c.host)
	}
}

func TestAUUIDIsNoMountPoint(t *testing.T) {
	var got, reply []byte
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	reply, err = proto.Marshal(&runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp: 7, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/containerd"}, UsedBytes: &runtimeapi.UInt64Value{Value: 9},
	}}})
	require.NoError(t, err)
	cc := front(t, muxtest.Dir(t), cfg, onlyVersion("runtime.v1", mirror(&got, &reply)))
	answer, err := invoke(t, cc, "/runtime.ImageService/ImageFsInfo", nil)
	require.NoError(t, err)
	var info runtimeapi.ImageFsInfoResponse
	require.NoError(t, proto.Unmarshal(answer, &info))
	assert.Nil(t, info.GetImageFilesystems()[0].GetFsId())
	assert.EqualValues(t, 9, info.GetImageFilesystems()[0].GetUsedBytes().GetValue())
}

func TestV1alpha2IsV1UnderAnotherName(t *testing.T) {
	var got, reply []byte
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	request := []byte("\x0a\x02\xff\xfe\xfa\x3e\x01x") // invalid UTF-8, and an unknown field
	for client, backend := range map[string]string{"runtime.v1alpha2": "runtime.v1", "runtime.v1": "runtime.v1alpha2"} {
		cc := front(t, muxtest.Dir(t), cfg, onlyVersion(backend, mirror(&got, &reply)))
		reply = []byte("\x0a\x03id\xff")
		answer, err := invoke(t, cc, "/"+client+".RuntimeService/StopPodSandbox", request)
		require.NoError(t, err)
		assert.Equal(t, request, got)
		assert.Equal(t, reply, answer)
	}
}

// onlyVersion is a runtime that has one version of CRI.
func onlyVersion(version string, h muxtest.Handler) muxtest.Handler {
	return func(method string, stream grpc.ServerStream) error {
		prefix := "/" + version + "."
		if len(method) < len(prefix) || method[:len(prefix)] != prefix || version == "runtime" && method[:len("/runtime.v")] == "/runtime.v" {
			return status.Errorf(codes.Unimplemented, "unknown service %s", method)
		}
		if method == prefix+"RuntimeService/Version" {
			return stream.SendMsg(&codec.Frame{})
		}
		return h(method, stream)
	}
}
