package criadapter_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
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
		r := newRelay(t, criadapter.Options{}, "runtime.v1")

		// RunPodSandboxRequest.config.linux.security_context.namespace_options
		r.call(t, "/runtime.RuntimeService/RunPodSandbox", inField(flags(c.host...), 1, 8, 2, 1))
		var run runtimeapi.RunPodSandboxRequest
		require.NoError(t, proto.Unmarshal(r.got, &run))
		assert.True(t, proto.Equal(c.want, run.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()), "%v: %v", c.host, &run)

		// CreateContainerRequest.config.linux.security_context.namespace_options
		r.call(t, "/runtime.RuntimeService/CreateContainer", inField(flags(c.host...), 2, 15, 2, 3))
		var create runtimeapi.CreateContainerRequest
		require.NoError(t, proto.Unmarshal(r.got, &create))
		assert.True(t, proto.Equal(c.want, create.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()), "%v: %v", c.host, &create)

		// And back, in a status, where v1 has more modes than v1alpha1 can say.
		// PodSandboxStatusResponse.status.linux.namespaces.options
		var err error
		r.reply, err = proto.Marshal(&runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: c.want}},
		}})
		require.NoError(t, err)
		assert.Equal(t, inField(flags(c.host...), 1, 6, 1, 2), r.call(t, "/runtime.RuntimeService/PodSandboxStatus", nil), "%v", c.host)

		// A v1 client in front of a v1alpha1 runtime.
		r = newRelay(t, criadapter.Options{}, "runtime")
		request, err := proto.Marshal(&run)
		require.NoError(t, err)
		r.call(t, runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, request)
		assert.Equal(t, inField(flags(c.host...), 1, 8, 2, 1), r.got, "%v", c.host)
	}
}

func TestAUUIDIsNoMountPoint(t *testing.T) {
	r := newRelay(t, criadapter.Options{}, "runtime.v1")
	var err error
	r.reply, err = proto.Marshal(&runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp: 7, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/containerd"}, UsedBytes: &runtimeapi.UInt64Value{Value: 9},
	}}})
	require.NoError(t, err)
	var info runtimeapi.ImageFsInfoResponse
	require.NoError(t, proto.Unmarshal(r.call(t, "/runtime.ImageService/ImageFsInfo", nil), &info))
	assert.Nil(t, info.GetImageFilesystems()[0].GetFsId())
	assert.EqualValues(t, 9, info.GetImageFilesystems()[0].GetUsedBytes().GetValue())
}

func TestV1alpha2IsV1UnderAnotherName(t *testing.T) {
	request := []byte("\x0a\x02\xff\xfe\xfa\x3e\x01x") // invalid UTF-8, and an unknown field
	for client, backend := range map[string]string{"runtime.v1alpha2": "runtime.v1", "runtime.v1": "runtime.v1alpha2"} {
		r := newRelay(t, criadapter.Options{}, backend)
		r.reply = []byte("\x0a\x03id\xff")
		assert.Equal(t, r.reply, r.call(t, "/"+client+".RuntimeService/StopPodSandbox", request))
		assert.Equal(t, request, r.got)
	}
}
