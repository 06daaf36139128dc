package server

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/rude"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

const runtimeService = "/runtime.v1.RuntimeService/"

// A rudeRuntime is a runtime that answers with whatever a test says. Without more it has one pod, and no container.
type rudeRuntime struct {
	header, trailer []rude.Field // of each reply
	answer          func(method string, request *rude.Message) *rude.Message
}

// reply returns the usual reply to a call.
func (r *rudeRuntime) reply(method string) *rude.Message {
	m := &rude.Message{Header: append(rude.Fields(":status", "200", "content-type", "application/grpc"), r.header...)}
	var body proto.Message
	switch method {
	case runtimeService + "Version":
		body = &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "rude", RuntimeVersion: "1", RuntimeApiVersion: "v1"}
	case runtimeService + "ListPodSandbox":
		body = &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u", Namespace: "d"}}}}
	case runtimeService + "ContainerStatus":
		return r.fails("5", "no such container")
	}
	b, err := proto.Marshal(body)
	if err != nil {
		panic(err)
	}
	m.Bodies = [][]byte{b}
	m.Trailer = append(rude.Fields("grpc-status", "0"), r.trailer...)
	return m
}

// fails returns a reply that is Trailers-Only.
func (r *rudeRuntime) fails(code, text string) *rude.Message {
	all := append(rude.Fields(":status", "200", "content-type", "application/grpc", "grpc-message", text, "grpc-status", code), r.header...)
	return &rude.Message{Trailer: append(all, r.trailer...)}
}

// behind starts rude runtimes and a proxy in front of them: the first one is the primary, the second one beta.io.
func behind(t *testing.T, path string, runtimes ...*rudeRuntime) *node {
	machines := []machineConfig{{absent: true}, {absent: true, backend: config.Backend{Name: "beta.io"}}}[:len(runtimes)]
	return newNode(t, func(c *config.Config) {
		c.DataPath = path
		for i, r := range runtimes {
			l, err := net.Listen("unix", c.Backends[i].Address)
			require.NoError(t, err)
			rude.Serve(t, l, func(method string, request *rude.Message) *rude.Message {
				if r.answer != nil {
					if m := r.answer(method, request); m != nil {
						return m
					}
				}
				return r.reply(method)
			})
		}
	}, machines...)
}

// onEachPath runs a test on both data paths, with one runtime and with two; the last one is the rude one.
func onEachPath(t *testing.T, test func(t *testing.T, start func(last *rudeRuntime) (n *node, prefix string))) {
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		for name, before := range map[string][]*rudeRuntime{"one runtime": nil, "two runtimes": {{}}} {
			t.Run(path+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, func(last *rudeRuntime) (*node, string) {
					n := behind(t, path, append(before[:len(before):len(before)], last)...)
					if len(n.cfg.Backends) == 1 {
						return n, ""
					}
					n.isUp(0)
					n.isUp(1)
					return n, "beta.io__"
				})
			})
		}
	}
}

// odd are fields that HTTP/2 allows, and that grpc-go refuses from its callers; hops are fields of one connection.
var (
	odd  = rude.Fields("x-node", "Z\xc3\xbcrich", "x-latin", "\xfc\t\xff", "x!y", "v")
	hops = rude.Fields("content-length", "34", "date", "Fri, 27 Nov 2026 07:45:32 GMT", "trailer", "Grpc-Status", "connection", "keep-alive", "keep-alive", "timeout=5", "proxy-authenticate", "Basic", "upgrade", "h2c", "host", "b")
)

func assertOdd(t *testing.T, m *rude.Message) {
	t.Helper()
	for _, f := range odd {
		assert.Contains(t, m.Get(f.Name), f.Value, f.Name)
	}
	for _, f := range hops {
		assert.Empty(t, m.Get(f.Name), f.Name)
	}
}

func TestOddBytesFromARuntimeChangeNoAnswer(t *testing.T) {
	t.Parallel()
	onEachPath(t, func(t *testing.T, start func(*rudeRuntime) (*node, string)) {
		n, prefix := start(&rudeRuntime{header: append(hops[:len(hops):len(hops)], odd...), trailer: rude.Fields("x-end", "f\xc3\xbcr", "date", "today")})
		pods := []string{"p"}
		if prefix != "" {
			pods = append(pods, prefix+"p")
		}
		n.lists(pods...)
		c := rude.Dial(t, n.cfg.Listen)
		for _, method := range []string{"Version", "ListPodSandbox"} {
			m, err := c.Call(runtimeService+method, nil)
			require.NoError(t, err)
			assert.Equal(t, []string{"0"}, m.Get("grpc-status"), method)
			assert.Len(t, m.Bodies, 1, method)
			if method != "Version" || prefix == "" { // otherwise the primary answers
				assertOdd(t, m)
				assert.Contains(t, m.Get("x-end"), "f\xc3\xbcr", method)
			}
		}
		body, err := proto.Marshal(&runtimeapi.ContainerStatusRequest{ContainerId: prefix + "none"})
		require.NoError(t, err)
		m, err := c.Call(runtimeService+"ContainerStatus", body)
		require.NoError(t, err)
		assert.Equal(t, []string{"5"}, m.Get("grpc-status"))
		assert.Equal(t, []string{"no such container"}, m.Get("grpc-message"))
		assertOdd(t, m)
	})
}

// Whether the odd fields themselves reach the runtime is a difference of the data paths.
func TestOddBytesFromAClientChangeNoAnswer(t *testing.T) {
	t.Parallel()
	onEachPath(t, func(t *testing.T, start func(*rudeRuntime) (*node, string)) {
		got := make(chan *rude.Message, 10)
		n, prefix := start(&rudeRuntime{answer: func(method string, request *rude.Message) *rude.Message {
			if method == runtimeService+"StopContainer" {
				got <- request
			}
			return nil
		}})
		body, err := proto.Marshal(&runtimeapi.StopContainerRequest{ContainerId: prefix + "c"})
		require.NoError(t, err)
		c := rude.Dial(t, n.cfg.Listen)
		_, err = c.Call(runtimeService+"StopContainer", body) // the first call also asks which version the runtime speaks
		require.NoError(t, err)
		<-got
		more := append(rude.Fields("x-plain", "v", "date", "today", "trailer", "x"), odd...)
		for range 2 {
			m, err := c.Call(runtimeService+"StopContainer", body, more...)
			require.NoError(t, err)
			assert.Equal(t, []string{"0"}, m.Get("grpc-status"), m)
			request := <-got
			assert.Equal(t, []string{"v"}, request.Get("x-plain"))
			assert.Empty(t, request.Get("date"))
			assert.Empty(t, request.Get("trailer"))
		}
	})
}

// lossesOf returns how many fields were lost, as the metric says.
func lossesOf(t *testing.T, n *node, direction, reason string) float64 {
	families, err := n.proxy.metrics.Registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "criproxy_metadata_losses_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); l[0].GetValue() == direction && l[1].GetValue() == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	require.Fail(t, "there is no such metric")
	return 0
}

// A text of up to a mebibyte passes; of a longer one, its beginning. The code stays in any case, and other calls go on.
func TestALongTextChangesNoCode(t *testing.T) {
	t.Parallel()
	onEachPath(t, func(t *testing.T, start func(*rudeRuntime) (*node, string)) {
		r := &rudeRuntime{}
		length := 0
		r.answer = func(method string, _ *rude.Message) *rude.Message {
			if method != runtimeService+"ContainerStatus" {
				return nil
			}
			return r.fails("5", strings.Repeat("x", length))
		}
		n, prefix := start(r)
		for _, length = range []int{66_000, 140_000, 1_000_000, 1_200_000} {
			_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: prefix + "c"})
			testkit.AssertCode(t, codes.NotFound, err)
			text := status.Convert(err).Message()
			if strings.HasSuffix(text, transport.CutMark) {
				assert.Greater(t, length, 1<<20, "what is longer is a difference of the data paths")
				assert.Greater(t, len(text), 1<<20-1000)
			} else {
				assert.Len(t, text, length)
			}
			_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
			assert.NoError(t, err)
		}
		if prefix != "" {
			assert.True(t, n.proxy.Health().Backends[1].IsUp())
		}
	})
}

// Metadata that is too long fails its own call, and none beside it.
func TestALongRequestHeaderFailsOnlyItsCall(t *testing.T) {
	t.Parallel()
	n := behind(t, config.OwnPath, &rudeRuntime{})
	c := rude.Dial(t, n.cfg.Listen)
	for _, length := range []int{60_000, 70_000, 200_000, 700_000} {
		m, err := c.Call(runtimeService+"Version", nil, rude.Fields("x-long", strings.Repeat("x", length))...)
		require.NoError(t, err, length)
		if length < 64<<10 {
			assert.Equal(t, []string{"0"}, m.Get("grpc-status"), length)
		} else {
			assert.Equal(t, []string{"8"}, m.Get("grpc-status"), length)
		}
		m, err = c.Call(runtimeService+"Version", nil)
		require.NoError(t, err, length)
		assert.Equal(t, []string{"0"}, m.Get("grpc-status"), length)
	}
}

// Clients of gRPC's C core accept 16 KiB.
func TestAClientThatAcceptsLittleGetsTheCode(t *testing.T) {
	t.Parallel()
	r := &rudeRuntime{trailer: rude.Fields("x-long", strings.Repeat("x", 20_000), "x-short", "y")}
	r.answer = func(method string, _ *rude.Message) *rude.Message {
		if method != runtimeService+"ContainerStatus" {
			return nil
		}
		return r.fails("5", strings.Repeat("%E2%82%AC", 3_000))
	}
	n := behind(t, config.OwnPath, r)
	n.connect(grpc.WithMaxHeaderListSize(16 << 10))
	var trailer metadata.MD
	_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: "c"}, grpc.Trailer(&trailer))
	testkit.AssertCode(t, codes.NotFound, err)
	assert.Regexp(t, `^(€){1000,} \.\.\. \(cut by criproxy\)$`, status.Convert(err).Message())
	assert.Empty(t, trailer.Get("x-long"))
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{}, grpc.Trailer(&trailer))
	require.NoError(t, err)
	assert.Empty(t, trailer.Get("x-long"))
	assert.Equal(t, []string{"y"}, trailer.Get("x-short"), "what fits")
	assert.Equal(t, 4.0, lossesOf(t, n, "reply", "size"), "the text and both fields of the first, one of the second")
}
