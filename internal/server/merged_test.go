package server

import (
	"path"
	"path/filepath"
	"strings"
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
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// replies is a runtime that answers each of its methods with the same bytes, which may be
// malformed. It has no other methods.
type replies map[string][]byte

// merged is a proxy in front of such runtimes: the primary, beta.io and gamma.io.
func merged(t *testing.T, change func(*config.Config), runtimes ...replies) *node {
	t.Helper()
	dir := muxtest.Dir(t)
	n := &node{TB: t, cfg: &config.Config{Listen: filepath.Join(dir, "front.sock"), StateDir: "none", Hooks: "none", Admin: "none"}}
	for i, name := range []string{"", "beta.io", "gamma.io"}[:len(runtimes)] {
		socket := filepath.Join(dir, string(rune('0'+i))+".sock")
		runtimes[i].serve(t, socket)
		n.cfg.Backends = append(n.cfg.Backends, config.Backend{Name: name, Address: socket})
	}
	if change != nil {
		change(n.cfg)
	}
	n.proxy = startProxy(t, n.cfg)
	for i := range runtimes {
		n.isUp(i)
	}
	n.cc = muxtest.Connect(t, n.cfg.Listen)
	n.RuntimeServiceClient, n.ImageServiceClient = runtimeapi.NewRuntimeServiceClient(n.cc), runtimeapi.NewImageServiceClient(n.cc)
	return n
}

func (r replies) serve(t *testing.T, socket string) {
	version, err := proto.Marshal(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: "v1"})
	require.NoError(t, err)
	muxtest.Serve(t, socket, func(method string, ss grpc.ServerStream) error {
		if err := ss.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		name := path.Base(method)
		reply, has := r[name]
		switch {
		case has:
		case strings.HasPrefix(method, "/runtime.v1.") && name == "Version":
			reply = version
		case strings.HasPrefix(method, "/runtime.v1.") && (name == "ListPodSandbox" || name == "ListContainers" || name == "ListImages"):
		default:
			return status.Errorf(codes.Unimplemented, "unknown method %s", method)
		}
		return ss.SendMsg(codec.NewFrame(reply))
	})
}

func TestKubeletDecodesAListWithTextThatIsNoUTF8(t *testing.T) {
	t.Parallel()
	str := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	pod := func(id, uid, reason string) []byte {
		sandbox := append(str(1, id), str(2, string(append(str(1, "name"), str(2, uid)...)))...)
		return str(1, string(append(sandbox, str(5, string(append(str(1, "reason"), str(2, reason)...)))...)))
	}
	n := merged(t, func(c *config.Config) { c.Backends[1].Name = "utf8.test" }, replies{"ListPodSandbox": pod("1", "u1", "all ü")}, replies{"ListPodSandbox": pod("2", "u2", "all\xff\xfe")})
	for range 2 {
		list, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetItems(), 2)
		assert.Equal(t, "all ü", list.GetItems()[0].GetLabels()["reason"])
		assert.Equal(t, "all�", list.GetItems()[1].GetLabels()["reason"])
		assert.Equal(t, "utf8.test__2", list.GetItems()[1].GetId())
	}
	assert.Len(t, testkit.LogLines("not valid UTF-8", `"backend"="utf8.test"`, `"field"="runtime.v1.PodSandbox.LabelsEntry.value"`), 1, "once")
}

// seenByKubelet is what kubelet concludes from ImageFsInfo: the first entry of each list, and
// whether they are two filesystems (pkg/kubelet/stats/cadvisor_stats_provider.go,
// and earlier IsContainerFsSeparateFromImageFs of its eviction manager).
func seenByKubelet(info *runtimeapi.ImageFsInfoResponse) (image, container string, split bool) {
	first := func(list []*runtimeapi.FilesystemUsage) string {
		if len(list) == 0 {
			return "none"
		}
		return list[0].GetFsId().GetMountpoint()
	}
	image, container = first(info.GetImageFilesystems()), first(info.GetContainerFilesystems())
	return image, container, image != "none" && container != "none" && image != container
}

func TestKubeletReadsThePrimarysFilesystems(t *testing.T) {
	t.Parallel()
	usage := func(mountpoints ...string) (all []*runtimeapi.FilesystemUsage) {
		for _, m := range mountpoints {
			all = append(all, &runtimeapi.FilesystemUsage{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: m}})
		}
		return all
	}
	containerd := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/containerd")}
	second := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/two")}
	crio := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/containers"), ContainerFilesystems: usage("/var/lib/containers")}
	divided := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/images"), ContainerFilesystems: usage("/var/lib/containers")}
	for name, c := range map[string]struct {
		primary, second, want *runtimeapi.ImageFsInfoResponse
	}{
		"neither has container filesystems": {containerd, second, &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/containerd", "/var/lib/two")}},
		"the second has":                    {containerd, crio, &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/containerd", "/var/lib/containers")}},
		"the second has, divided":           {containerd, divided, &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/containerd", "/images")}},
		"the primary has":                   {crio, containerd, &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/var/lib/containers", "/var/lib/containerd"), ContainerFilesystems: usage("/var/lib/containers")}},
		"the primary has, divided":          {divided, containerd, &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/images", "/var/lib/containerd"), ContainerFilesystems: usage("/var/lib/containers")}},
		"both have":                         {divided, crio, &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage("/images", "/var/lib/containers"), ContainerFilesystems: usage("/var/lib/containers", "/var/lib/containers")}},
		"the primary has none at all":       {&runtimeapi.ImageFsInfoResponse{}, crio, &runtimeapi.ImageFsInfoResponse{}},
	} {
		t.Run(name, func(t *testing.T) {
			n := merged(t, nil, replies{"ImageFsInfo": encode(t, c.primary)}, replies{"ImageFsInfo": encode(t, c.second)})
			got, err := n.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
			require.NoError(t, err)
			assertProto(t, c.want, got)
			image, container, split := seenByKubelet(c.primary)
			i, d, s := seenByKubelet(got)
			assert.Equal(t, []any{image, container, split}, []any{i, d, s}, "kubelet reads what it would read on the primary alone")
		})
	}
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}
