package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// plant creates a pod on the second runtime, with secrets where kubelet and kubectl put them.
func (p *process) plant(name string) (sandbox, container string) {
	p.Helper()
	cc := p.connect(p.front)
	client := runtimeapi.NewRuntimeServiceClient(cc)
	_, err := runtimeapi.NewImageServiceClient(cc).PullImage(p.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}})
	require.NoError(p, err)
	annotations := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": planted, "harmless": "harmless-annotation"}
	pod := podOn("beta.io", name)
	maps.Copy(pod.Annotations, annotations)
	ran, err := client.RunPodSandbox(p.Context(), &runtimeapi.RunPodSandboxRequest{Config: pod})
	require.NoError(p, err)
	created, err := client.CreateContainer(p.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: ran.PodSandboxId, SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}, Annotations: annotations,
		Envs: []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte(planted)}},
	}})
	require.NoError(p, err)
	return ran.PodSandboxId, created.ContainerId
}

// readAll makes every read-only call, in all versions of CRI, and returns the replies by the method's
// name in the newest version.
func (p *process) readAll(socket, sandbox, container string) map[string][]byte {
	p.Helper()
	cc := p.connect(socket)
	seen := map[string][]byte{}
	for _, m := range criadapter.Schema().Methods() {
		name := filepath.Base(m.Name)
		if !looks(m.Name) || testkit.Endless(m.Name) {
			continue
		}
		for _, pkg := range []string{"runtime.v1.", "runtime.v1alpha2.", "runtime."} {
			cs := p.open(cc, "/"+pkg+m.Name[len("/runtime.v1."):], p.request(name, sandbox, container))
			for {
				var reply codec.Frame
				if err := cs.RecvMsg(&reply); err != nil {
					break
				}
				seen[name] = append(seen[name], reply.Bytes()...)
			}
		}
	}
	seen["GetContainerEvents"] = p.event(cc)
	return seen
}

func (p *process) open(cc *grpc.ClientConn, method string, request []byte) grpc.ClientStream {
	p.Helper()
	cs, err := cc.NewStream(p.Context(), &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(codec.Raw))
	require.NoError(p, err)
	require.NoError(p, cs.SendMsg(codec.NewFrame(request)))
	require.NoError(p, cs.CloseSend())
	return cs
}

// event returns an event of a pod that it creates, or nothing if the client may not read events.
func (p *process) event(cc *grpc.ClientConn) []byte {
	p.Helper()
	cs := p.open(cc, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, nil)
	events := make(chan []byte, 1000)
	go func() { // ends with the connection
		defer close(events)
		for {
			var reply codec.Frame
			if cs.RecvMsg(&reply) != nil {
				return
			}
			events <- reply.Bytes()
		}
	}()
	for n := 0; ; n++ { // until the runtime has our subscription
		p.plant(fmt.Sprint("event", time.Now().UnixNano()))
		wait := time.After(300 * time.Millisecond)
		for waits := true; waits; {
			select {
			case e, ok := <-events:
				if !ok || strings.Contains(string(e), "harmless-annotation") {
					return e
				}
			case <-wait:
				waits = false
			}
		}
		require.Less(p, n, 100)
	}
}

func (p *process) request(name, sandbox, container string) []byte {
	requests := map[string]proto.Message{
		"PodSandboxStatus": &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true}, "PodSandboxStats": &runtimeapi.PodSandboxStatsRequest{PodSandboxId: sandbox},
		"ContainerStatus": &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true}, "ContainerStats": &runtimeapi.ContainerStatsRequest{ContainerId: container},
		"ImageStatus": &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}, Verbose: true}, "Status": &runtimeapi.StatusRequest{Verbose: true},
	}
	if requests[name] == nil {
		return nil
	}
	b, err := proto.Marshal(requests[name])
	require.NoError(p, err)
	return b
}

func TestAReadOnlySocketShowsNoSecrets(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	at := func(name string) string { return filepath.Join(p.dir, name+".sock") }
	p.write(fmt.Sprintf(`listeners:
- {path: %s, access: [{methods: [read-only]}]}
- {path: %s, access: [{methods: ["List*", "Stream*", "*Status", "*Stats"]}]}
- {path: %s, access: [{methods: [read-only]}, {methods: [StopPodSandbox], uids: [4242424]}]}
- {path: %s, access: [{methods: [read-only, ContainerStatus]}]}
- {path: %s, access: [{methods: [read-only]}, {methods: [StopPodSandbox]}]}
`, at("read"), at("patterns"), at("others"), at("named"), at("write")))
	p.launch()
	sandbox, container := p.plant("web")
	all := p.readAll(p.front, sandbox, container)
	holds := func(seen map[string][]byte) (names []string) {
		for name, replies := range seen {
			if hasPlanted(replies) {
				names = append(names, name)
			}
		}
		return names
	}
	secret := []string{"ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers", "PodSandboxStatus", "ContainerStatus", "GetContainerEvents",
		"ListPodSandboxStats", "ListContainerStats", "StreamPodSandboxStats", "StreamContainerStats", "PodSandboxStats", "ContainerStats"}
	require.Subset(t, holds(all), secret[:7], "a client that may write sees everything")
	for _, name := range []string{"read", "patterns", "others"} {
		seen := p.readAll(at(name), sandbox, container)
		assert.Empty(t, holds(seen), "at the socket %s", name)
		assert.Less(t, len(seen["Status"]), len(all["Status"]), "without verbose information")
		for _, method := range secret[:7] {
			if name != "patterns" || method != "GetContainerEvents" {
				assert.Contains(t, string(seen[method]), "harmless-annotation", "%s at %s: all else is there", method, name)
			}
		}
	}
	named := p.readAll(at("named"), sandbox, container)
	assert.Equal(t, []string{"ContainerStatus"}, holds(named), "a method that the rule names shows everything")
	assert.Len(t, named["ContainerStatus"], len(all["ContainerStatus"]), "including verbose information")
	write := p.readAll(at("write"), sandbox, container)
	assert.ElementsMatch(t, holds(all), holds(write), "nothing is hidden from a client that may write")
	for _, method := range []string{"PodSandboxStatus", "ContainerStatus", "Status"} {
		assert.Len(t, write[method], len(all[method]), method)
	}
}
