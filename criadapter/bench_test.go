package criadapter_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/rewrite"
)

// containers is a list such as kubelet gets every second, with about 900 bytes for each container.
func containers(n int) *runtimeapi.ListContainersResponse {
	list := &runtimeapi.ListContainersResponse{}
	for i := range n {
		id := fmt.Sprintf("%064x", i)
		image := "sha256:" + strings.Repeat("ab", 32)
		list.Containers = append(list.Containers, &runtimeapi.Container{
			Id:           id,
			PodSandboxId: fmt.Sprintf("%064x", i/2),
			Metadata:     &runtimeapi.ContainerMetadata{Name: "app", Attempt: 1},
			Image:        &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: "registry.example.com/team/app:v1.2.3"},
			ImageRef:     image,
			ImageId:      image,
			State:        runtimeapi.ContainerState_CONTAINER_RUNNING,
			CreatedAt:    1763700000000000000 + int64(i),
			Labels: map[string]string{
				"io.kubernetes.container.name": "app",
				"io.kubernetes.pod.name":       fmt.Sprintf("app-7c6d4f9b8d-%05d", i/2),
				"io.kubernetes.pod.namespace":  "default",
				"io.kubernetes.pod.uid":        fmt.Sprintf("38875a67-cb9b-11e7-bcec-%012d", i/2),
			},
			Annotations: map[string]string{
				"io.kubernetes.container.hash":                     "4ed92d4f",
				"io.kubernetes.container.restartCount":             "1",
				"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
				"io.kubernetes.container.terminationMessagePolicy": "File",
				"io.kubernetes.pod.terminationGracePeriod":         "30",
			},
		})
	}
	return list
}

var names = []rewrite.Rule{
	{Field: "Container.id", Class: 1},
	{Field: "*.pod_sandbox_id", Class: 1},
	{Field: "ImageSpec.image", Class: 2},
	{Field: "ImageSpec.user_specified_image", Class: 2},
	{Field: "ImageSpec.image_ref", Class: 2},
	{Field: "Container.image_id", Class: 2},
	{Field: "Container.image_ref", Class: 2},
}

// BenchmarkRewriteList measures how long it takes to put a prefix before the six names of
// each of 1000 containers: with the wire loop, and with typed code.
func BenchmarkRewriteList(b *testing.B) {
	list := containers(1000)
	in, err := proto.Marshal(list)
	require.NoError(b, err)
	md := list.ProtoReflect().Descriptor()
	classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{md}, names)
	require.NoError(b, err)

	b.Run("wire", func(b *testing.B) {
		plan, dst := classes.Plan(md), make([]byte, 0, 2*len(in))
		prefixes := [][]byte{1: []byte("two.test__"), 2: []byte("two.test/")}
		edit := func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
			return append(append(dst, prefixes[c]...), v...), nil
		}
		b.SetBytes(int64(len(in)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := plan.Apply(dst, in, edit); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("typed", func(b *testing.B) {
		dst := make([]byte, 0, 2*len(in))
		b.SetBytes(int64(len(in)))
		b.ReportAllocs()
		for b.Loop() {
			var list runtimeapi.ListContainersResponse
			if err := proto.Unmarshal(in, &list); err != nil {
				b.Fatal(err)
			}
			for _, c := range list.Containers {
				c.Id = "two.test__" + c.Id
				c.PodSandboxId = "two.test__" + c.PodSandboxId
				c.Image.Image = "two.test/" + c.Image.Image
				c.Image.UserSpecifiedImage = "two.test/" + c.Image.UserSpecifiedImage
				c.ImageId = "two.test/" + c.ImageId
				c.ImageRef = "two.test/" + c.ImageRef
			}
			if _, err := (proto.MarshalOptions{}).MarshalAppend(dst, &list); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// answering is a connection to a runtime that answers at once, with the same bytes.
type answering struct {
	grpc.ClientConnInterface
	reply *codec.Frame
}

func (a answering) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	return codec.Decode(reply, a.reply.Ref())
}

// BenchmarkMergeLists measures the merge of two lists, which are checked first, without sockets.
func BenchmarkMergeLists(b *testing.B) {
	for _, n := range []int{5, 500} {
		b.Run(fmt.Sprintf("%d+%d containers", n, n), func(b *testing.B) {
			list, err := codec.FrameOf(containers(n))
			require.NoError(b, err)
			cfg, err := criadapter.Config(criadapter.Options{})
			require.NoError(b, err)
			cfg.Backends = []director.Backend{{Conn: answering{reply: list}}, {Name: "two.test", Conn: answering{reply: list}}}
			d, err := director.New(cfg)
			require.NoError(b, err)
			b.SetBytes(int64(2 * list.Len()))
			b.ReportAllocs()
			for b.Loop() {
				reply := &codec.Frame{}
				if err := d.Invoke(b.Context(), runtimeapi.RuntimeService_ListContainers_FullMethodName, &codec.Frame{}, reply); err != nil {
					b.Fatal(err)
				}
				reply.Free()
			}
		})
	}
}
