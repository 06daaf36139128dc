package criadapter

import (
	"bytes"
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/rewrite"
)

// keeper is a runtime that has one container and one image, and keeps its requests.
type keeper struct {
	container, image string
	got              map[string][]byte // :: full method → the latest request
}

func (k *keeper) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	k.got[method] = bytes.Clone(request.Bytes())
	// Not with proto.Marshal, because the names need not be UTF-8.
	text := func(num protowire.Number, b []byte, v string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
	}
	var b []byte
	switch method {
	case runtimeapi.RuntimeService_ListContainers_FullMethodName:
		b = text(1, nil, string(text(1, nil, k.container)))
	case runtimeapi.ImageService_ListImages_FullMethodName:
		b = text(1, nil, string(text(2, text(1, nil, k.image), k.image)))
	}
	return codec.Decode(reply, codec.NewFrame(b))
}

func (*keeper) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("nothing here streams")
}

// FuzzIDsAndImages checks that a call with the name of a container or an image from the list of a
// second runtime goes to that runtime, and to no other. A name that is not UTF-8 is mended in the
// list, and calls have the mended name.
func FuzzIDsAndImages(f *testing.F) {
	f.Add("7f", "docker.io/library/busybox:latest")
	f.Add("beta.io__7f", "beta.io/busybox")
	f.Add("__", "/")
	f.Add("\x00\xff__", "sha256:0123@sha256:4567")
	cfg, err := Config(Options{})
	require.NoError(f, err)
	one, two := &keeper{container: "1", image: "1"}, &keeper{}
	cfg.Backends = []director.Backend{{Conn: one}, {Name: "beta.io", Conn: two}}
	d, err := director.New(cfg)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, container, image string) {
		if container == "" || image == "" {
			return
		}
		two.container, two.image = container, image
		one.got, two.got = map[string][]byte{}, map[string][]byte{}
		call := func(method string, request []byte) *codec.Frame {
			t.Helper()
			var reply codec.Frame
			require.NoError(t, d.Invoke(t.Context(), method, codec.NewFrame(request), &reply), "%s %q", method, request)
			return &reply
		}
		// The first field of the second item of a list.
		second := func(method string) string {
			t.Helper()
			items := call(method, nil).Bytes()
			_, _, n := protowire.ConsumeField(items)
			require.Positive(t, n)
			item, n := protowire.ConsumeBytes(items[n+1:])
			require.Positive(t, n)
			v, n := protowire.ConsumeBytes(item[1:])
			require.Positive(t, n)
			return string(v)
		}
		field := func(v string) []byte {
			return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), v)
		}
		for _, c := range []struct {
			list, then, back string
			wrap             bool
		}{
			{runtimeapi.RuntimeService_ListContainers_FullMethodName, runtimeapi.RuntimeService_StopContainer_FullMethodName, container, false},
			{runtimeapi.ImageService_ListImages_FullMethodName, runtimeapi.ImageService_RemoveImage_FullMethodName, image, true},
		} {
			front := second(c.list)
			ask, want := field(front), field(strings.ToValidUTF8(c.back, "\uFFFD"))
			if c.wrap {
				ask, want = field(string(ask)), field(string(want))
			}
			call(c.then, ask)
			assert.Equal(t, string(want), string(two.got[c.then]), "%q", front)
			assert.NotContains(t, one.got, c.then)
		}
	})
}

// FuzzConversions checks that a converted message of another version of CRI is still a message,
// and that a completed URL is still a URL with a host.
func FuzzConversions(f *testing.F) {
	ns, err := proto.Marshal(&runtimeapi.NamespaceOption{Network: 2, Pid: 1, Ipc: 2, TargetId: "x"})
	require.NoError(f, err)
	sec, err := proto.Marshal(&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: 2, LocalhostRef: "p.json"}, NamespaceOptions: &runtimeapi.NamespaceOption{}})
	require.NoError(f, err)
	f.Add(ns, "//[::]:35000/exec/TOKEN")
	f.Add(sec, "/cri/exec/TOKEN")
	f.Add([]byte("\x52\x11localhost/prof.js\x50\x01"), "http://0.0.0.0:1/x?y=%zz")
	f.Add([]byte("\x82\x01\x04\x08\x02\x12\x00"), "https://host")
	base, err := parseStreamURL("http://192.0.2.1:11250", 0)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, value []byte, address string) {
		valid := fields(value) >= 0
		for _, c := range []director.Conversion{v1alpha1, seccomp} {
			for i := range c.Fields {
				for _, edit := range []func(dst []byte, class rewrite.Class) ([]byte, error){
					func(dst []byte, class rewrite.Class) ([]byte, error) { return c.Up(dst, class, value) },
					func(dst []byte, class rewrite.Class) ([]byte, error) { return c.Down(dst, class, value) },
				} {
					got, err := edit([]byte("before"), rewrite.Class(i+1))
					if err != nil {
						continue // dropped or malformed
					}
					require.True(t, bytes.HasPrefix(got, []byte("before")))
					if valid {
						assert.GreaterOrEqual(t, fields(got[len("before"):]), 0, "%x became %x", value, got)
					}
				}
			}
		}
		got, err := base.complete(nil, []byte(address))
		require.NoError(t, err)
		if u, err := url.Parse(address); err == nil && address != "" && u.Opaque == "" && (u.Host == "" || u.Scheme == "") {
			if string(got) == address {
				_, err := url.Parse("http:" + address)
				assert.Error(t, err, "%q can be completed", address)
				return
			}
			whole, err := url.Parse(string(got))
			require.NoError(t, err, "%q became %q", address, got)
			assert.NotEmpty(t, whole.Host, "%q became %q", address, got)
			assert.NotEmpty(t, whole.Scheme)
			assert.True(t, strings.HasSuffix(string(got), u.EscapedFragment()))
		}
	})
}

// fields counts the fields of a message. It is negative for a malformed one.
func fields(b []byte) (n int) {
	for ; len(b) > 0; n++ {
		_, _, size := protowire.ConsumeField(b)
		if size < 0 {
			return -1
		}
		b = b[size:]
	}
	return n
}
