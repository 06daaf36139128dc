package server

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/backend"
	text "github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// olderCRI is CRI without what 0.36 and 0.37 brought: CheckpointPod, RestorePod, all Stream* and ImageSpec.image_ref.
func olderCRI(t testing.TB) *codec.Schema {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	require.NoError(t, proto.Unmarshal(criadapter.Schema().Descriptors(), set))
	removed := 0
	for _, file := range set.GetFile() {
		for _, service := range file.GetService() {
			n := len(service.GetMethod())
			service.Method = slices.DeleteFunc(service.GetMethod(), func(m *descriptorpb.MethodDescriptorProto) bool {
				return m.GetName() == "CheckpointPod" || m.GetName() == "RestorePod" || strings.HasPrefix(m.GetName(), "Stream")
			})
			removed += n - len(service.GetMethod())
		}
		file.MessageType = slices.DeleteFunc(file.GetMessageType(), func(m *descriptorpb.DescriptorProto) bool {
			return strings.HasPrefix(m.GetName(), "CheckpointPod") || strings.HasPrefix(m.GetName(), "Restore") || strings.HasPrefix(m.GetName(), "Stream")
		})
		for _, m := range file.GetMessageType() {
			n := len(m.GetField())
			m.Field = slices.DeleteFunc(m.GetField(), func(f *descriptorpb.FieldDescriptorProto) bool {
				return m.GetName() == "ImageSpec" && f.GetName() == "image_ref"
			})
			removed += n - len(m.GetField())
		}
	}
	require.Equal(t, 2+6+1, removed)
	b, err := proto.Marshal(set)
	require.NoError(t, err)
	schema, err := codec.ParseSchema(b)
	require.NoError(t, err)
	return schema
}

// newerNode is a criproxy that was built with an older CRI, in front of today's runtimes.
func newerNode(t *testing.T, change func(*config.Config)) *node {
	old := olderCRI(t)
	n := newNode(t, func(c *config.Config) {
		c.BuiltIn = old
		c.Backends[1].Handlers = map[string]string{"vm": "runc"}
		if change != nil {
			change(c)
		}
	}, machineConfig{Config: fakecri.Config{Checkpoints: true}},
		machineConfig{Config: fakecri.Config{Checkpoints: true}, backend: config.Backend{Name: "beta.io"}})
	n.isUp(0)
	n.isUp(1)
	return n
}

// streamed returns the pods in StreamPodSandboxes.
func (n *node) streamed() []string {
	n.Helper()
	pods, err := listPods(nil).streamed(n)
	require.NoError(n, err)
	return idsOf(pods)
}

// imageRef is what the second runtime got as ImageSpec.image_ref in the latest pull.
func (n *node) imageRef(ref string) string {
	n.Helper()
	_, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox", ImageRef: ref}})
	require.NoError(n, err)
	calls := n.runtimes[1].Calls("PullImage")
	return calls[len(calls)-1].Request.(*runtimeapi.PullImageRequest).GetImage().GetImageRef()
}

func TestAnOldCriproxyPassesANewerCRIOn(t *testing.T) {
	t.Parallel()
	n := newerNode(t, nil)
	one, two := n.run(0, "one", 1), n.run(1, "two", 1)
	list, err := n.ListPodSandbox(n.ctx(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	assert.Len(t, list.GetItems(), 2, "what it knows is as ever")
	pulled, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}})
	require.NoError(t, err)
	assert.Contains(t, pulled.GetImageRef(), "beta.io/", "by the pattern *.image_ref, in messages that it knows")

	_, err = n.CheckpointPod(n.ctx(), &runtimeapi.CheckpointPodRequest{PodSandboxId: one.sandbox, OutputPath: "/p", ContainerIds: one.containers})
	require.NoError(t, err, "a method that it does not know passes to the primary")
	_, err = n.CheckpointPod(n.ctx(), &runtimeapi.CheckpointPodRequest{PodSandboxId: two.sandbox, OutputPath: "/p", ContainerIds: two.containers})
	assert.Equal(t, codes.NotFound, status.Code(err), "which does not have pods of others: nothing happens to a wrong one")
	stream, err := n.StreamPodSandboxes(n.ctx(), &runtimeapi.StreamPodSandboxesRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	assert.Equal(t, codes.Unimplemented, status.Code(err), "so that a newer client lists in the older way, and not but the primary's part")
	assert.Equal(t, "beta.io/sha256:1", n.imageRef("beta.io/sha256:1"), "a field that it does not know passes as it is")
}

func TestTheNewerFileAloneMakesANewerCRIKnown(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cri.binpb")
	require.NoError(t, os.WriteFile(file, criadapter.Schema().Descriptors(), 0o600))
	var flags *config.Config
	n := newerNode(t, func(c *config.Config) { c.Proto, flags = []string{file}, c })
	one, two := n.run(0, "one", 1), n.run(1, "two", 1)

	_, err := n.CheckpointPod(n.ctx(), &runtimeapi.CheckpointPodRequest{PodSandboxId: two.sandbox, OutputPath: "/p", ContainerIds: two.containers})
	require.NoError(t, err, "by *.pod_sandbox_id* and *.container_id*")
	assert.Empty(t, n.runtimes[0].Calls("CheckpointPod"))
	config := testkit.PodConfig("again")
	restored, err := n.RestorePod(n.ctx(), &runtimeapi.RestorePodRequest{CheckpointPath: "/p", Config: config, RuntimeHandler: "vm",
		ContainerConfigs: []*runtimeapi.ContainerConfig{{Metadata: &runtimeapi.ContainerMetadata{Name: "c0"}, Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}}}})
	require.NoError(t, err, "by Restore*, which chooses by the handler")
	assert.True(t, strings.HasPrefix(restored.GetPodSandboxId(), "beta.io__"))
	require.Len(t, restored.GetRestoredContainers(), 1)
	_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: restored.GetRestoredContainers()[0].GetContainerId()})
	assert.NoError(t, err, "the id in the reply is that of the new container")
	assert.ElementsMatch(t, []string{one.sandbox, two.sandbox, restored.GetPodSandboxId()}, n.streamed())
	assert.Equal(t, "sha256:1", n.imageRef("beta.io/sha256:1"))

	// check says so.
	c := *flags
	r, err := Examine(t.Context(), &c)
	require.NoError(t, err)
	at := slices.IndexFunc(r.Methods, func(m methodReport) bool { return strings.HasSuffix(m.Method, "/RestorePod") })
	require.GreaterOrEqual(t, at, 0)
	assert.Contains(t, r.Methods[at].Goes, "by handler runtime_handler")
	assert.Equal(t, "container", r.Methods[at].Reply["restored_containers[].container_id"])

	// A capture knows it as well, wherever it is read.
	rec := n.proxy.record
	require.NotNil(t, rec.Schema.Method(runtimeapi.RuntimeService_RestorePod_FullMethodName))
	h := rec.Header()
	carried, err := codec.ParseSchema(h.Descriptors)
	require.NoError(t, err)
	require.NotNil(t, carried.Method(runtimeapi.RuntimeService_RestorePod_FullMethodName))
	seen := false
	var ev capture.Event
	for f := rec.Follow(); f.TryNext(&ev); {
		seen = seen || ev.Kind == capture.Request && strings.HasSuffix(ev.Method, "/RestorePod")
	}
	assert.True(t, seen)
}

// future has what a later CRI than the built-in one might add.
const future = `
message FreezePodRequest { string pod_sandbox_id = 1; repeated string peers = 2; string reason = 3; string token = 4 [debug_redact = true]; }
message FreezePodResponse { repeated string container_ids = 1; Container first = 2; }
message ListFrozenRequest {}
message ListFrozenResponse { repeated Frozen items = 1; }
message Frozen { string pod_sandbox_id = 1; string peer = 2; }
`

// futureProto writes an api.proto of the future, from that of cri-api.
func futureProto(t testing.TB) string {
	t.Helper()
	out, err := bounded.Command(t, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/cri-api").Output()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "pkg/apis/runtime/v1/api.proto"))
	require.NoError(t, err)
	const service = "service RuntimeService {"
	require.Equal(t, 1, strings.Count(string(text), service))
	newer := strings.Replace(string(text), service, service+"\nrpc FreezePod(FreezePodRequest) returns (FreezePodResponse) {}\nrpc ListFrozen(ListFrozenRequest) returns (ListFrozenResponse) {}", 1) + future
	newer = strings.Replace(newer, "message Container {", "message Container {\n    string twin_container_id = 900;", 1)
	file := filepath.Join(t.TempDir(), "api.proto")
	require.NoError(t, os.WriteFile(file, []byte(newer), 0o600))
	return file
}

func TestAFutureCRIWorksByItsProtoFile(t *testing.T) {
	t.Parallel()
	rules, err := profile.ParseRules([]byte("fields: {FreezePodRequest.peers: sandbox, Frozen.peer: sandbox}"))
	require.NoError(t, err)
	dir := muxtest.Dir(t)
	schema, err := codec.CompileProto(t.Context(), nil, futureProto(t))
	require.NoError(t, err)
	const freeze, frozen = "/runtime.v1.RuntimeService/FreezePod", "/runtime.v1.RuntimeService/ListFrozen"
	text := func(message string, b []byte) string {
		return string(text.Text{Unsafe: true}.Append(nil, schema.Method(freeze).File().Messages().ByName("FreezePodRequest").ParentFile().Messages().ByName(protoreflect.Name(message)), b))
	}
	str := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	sub := func(num protowire.Number, parts ...[]byte) []byte { return str(num, string(slices.Concat(parts...))) }
	got := make(chan string, 10)
	cfg := &config.Config{Listen: filepath.Join(dir, "front.sock"), Admin: "none", StateDir: "none", Hooks: "none", Proto: []string{futureProto(t)}, Rules: rules}
	for i, name := range []string{"", "beta.io"} {
		path := filepath.Join(dir, string(rune('0'+i))+".sock")
		muxtest.Serve(t, path, func(method string, ss grpc.ServerStream) error {
			request := &codec.Frame{}
			if err := ss.RecvMsg(request); err != nil {
				return err
			}
			var reply []byte
			switch method {
			case freeze:
				got <- name + ": " + text("FreezePodRequest", request.Bytes())
				reply = slices.Concat(str(1, "c1"), sub(2, str(1, "c1"), str(900, "c2")))
			case frozen:
				reply = sub(1, str(1, "p"+name), str(2, "q"))
			}
			return ss.SendMsg(codec.NewFrame(reply))
		})
		cfg.Backends = append(cfg.Backends, config.Backend{Name: name, Address: path})
	}
	p := startProxy(t, cfg)
	for _, b := range p.backends() {
		testkit.Eventually(t, "a backend is up", func() bool { return b.backend.State().Condition == backend.Up })
	}
	cc := muxtest.Connect(t, cfg.Listen)
	invoke := func(method, message string, request []byte) string {
		t.Helper()
		reply := &codec.Frame{}
		require.NoError(t, cc.Invoke(t.Context(), method, codec.NewFrame(request), reply))
		return text(message, reply.Bytes())
	}
	reply := invoke(freeze, "FreezePodResponse", slices.Concat(str(1, "beta.io__p1"), str(2, "beta.io__p2"), str(2, "beta.io__p3"), str(3, "cold"), str(77, "from later still")))
	assert.Equal(t, `beta.io: pod_sandbox_id: "p1" peers: "p2" peers: "p3" reason: "cold" 77: "from later still"`, <-got,
		"patterns find some ids, the rule of the file the others, and unknown fields pass")
	assert.Equal(t, `container_ids: "beta.io__c1" first {id: "beta.io__c1" twin_container_id: "beta.io__c2"}`, reply,
		"a new field of an old message is translated too")
	assert.Equal(t, `items {pod_sandbox_id: "p" peer: "q"} items {pod_sandbox_id: "beta.io__pbeta.io" peer: "beta.io__q"}`,
		invoke(frozen, "ListFrozenResponse", nil), "a new list shows all")

	// What the newer file says is secret is not recorded.
	invoke(freeze, "FreezePodResponse", slices.Concat(str(1, "p1"), str(4, "hunter2")))
	assert.Contains(t, <-got, "hunter2")
	var ev capture.Event
	for f := p.record.Follow(); f.TryNext(&ev); {
		assert.NotContains(t, string(ev.Payload), "hunter2")
	}
}

func TestDriftIsLoggedServedAndShownByCheck(t *testing.T) {
	t.Parallel()
	n := newerNode(t, nil)
	pod := n.run(0, "one", 1)
	_, err := n.CheckpointPod(n.ctx(), &runtimeapi.CheckpointPodRequest{PodSandboxId: pod.sandbox, OutputPath: "/p", ContainerIds: pod.containers})
	require.NoError(t, err)
	n.imageRef("beta.io/sha256:1")
	var where []string
	for _, f := range n.proxy.drift.Findings() {
		where = append(where, f.Kind+" "+f.Where)
		assert.NotZero(t, f.Count)
	}
	assert.Equal(t, []string{"method /runtime.v1.RuntimeService/CheckpointPod", "field ImageSpec field 20"}, where,
		"a whole pod's life, and nothing else is drift")

	l, err := net.Listen("unix", n.cfg.Admin)
	require.NoError(t, err)
	served := admin.New(n.proxy.served(), func(*http.ServeMux) {}, http.NotFound, http.NotFound)
	served.Listener = l
	defer served.Start()()
	r, err := FindDrift(t.Context(), n.cfg, true)
	require.NoError(t, err)
	assert.True(t, r.Running)
	assert.Equal(t, n.proxy.drift.Findings(), r.Seen)
	assert.Empty(t, r.Uncovered)
	var out strings.Builder
	r.Print(&out)
	assert.Contains(t, out.String(), "method /runtime.v1.RuntimeService/CheckpointPod, seen 1 time, first in")

	samples, err := n.proxy.metrics.Registry.Gather()
	require.NoError(t, err)
	counted := 0
	for _, family := range samples {
		if family.GetName() == "criproxy_drift_total" {
			counted = len(family.GetMetric())
		}
	}
	assert.Equal(t, 2, counted)

	// With the newer file all fields have names.
	file := filepath.Join(t.TempDir(), "cri.binpb")
	require.NoError(t, os.WriteFile(file, criadapter.Schema().Descriptors(), 0o600))
	next := *n.cfg
	next.Proto = []string{file}
	require.NoError(t, Check(&next))
	require.NoError(t, reload(n.proxy, &next))
	assert.Empty(t, n.proxy.drift.Findings())
	n.isUp(1)
	n.imageRef("beta.io/sha256:1")
	assert.Empty(t, n.proxy.drift.Findings())
	assert.NotEmpty(t, n.cfg.NeedsRestart(&next), "recordings go by the old file until a restart")
}
