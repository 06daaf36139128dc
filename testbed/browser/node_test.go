package browser

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// secret is in an environment variable of each container. It must not appear in any page.
const secret = "hunter2-is-secret"

// began is when the recording of a node begins.
var began = time.Date(2026, 3, 2, 3, 0, 0, 0, time.UTC)

// A node makes up the recording of a kubelet's calls to two runtimes: pods come and go, one runtime is
// down for a while, and the other one is slow.
type node struct {
	events []capture.Event
	calls  int
	random *rand.Rand
	pods   []*pod
	listed time.Duration // interval between kubelet's lists

	backends []capture.HeaderBackend // nil for primary and kata.io, whose conditions are not recorded
}

type pod struct {
	name, namespace, image string
	backend                string
	uid, id                string // uid of the pod, and back id of the sandbox
	containers             []string
	from, to               time.Duration
	probed                 time.Duration // interval between probes; zero: none
}

const primary, kata = "primary", "kata.io"

var (
	kubelet = capture.Peer{PID: 812, Name: "kubelet"}
	crictl  = capture.Peer{PID: 40113, Name: "crictl"}
)

// An exchange is one call. Its messages depend on the prefix of ids, which only the client sees.
type exchange struct {
	at       time.Duration
	method   string
	by       capture.Peer
	request  func(prefix string) proto.Message
	reply    func(prefix string) proto.Message
	backends []string // one backend, or all those of a merged list
	took     time.Duration
	code     codes.Code
	message  string
	memory   []string // backends for which memory answered
	list     func(backend, prefix string) proto.Message
	endless  bool
}

// down is the time in which kata.io does not answer, tired the time in which the primary is slow.
func down(t time.Duration) bool  { return t > 250*time.Second && t < 292*time.Second }
func tired(t time.Duration) bool { return t > 380*time.Second && t < 396*time.Second }

func (n *node) id() string {
	const hex = "0123456789abcdef"
	b := make([]byte, 64)
	for i := range b {
		b[i] = hex[n.random.IntN(16)]
	}
	return string(b)
}

// about returns a duration near a typical one, sometimes a much longer one.
func (n *node) about(typical time.Duration) time.Duration {
	return time.Duration(float64(typical) * math.Exp(n.random.NormFloat64()*0.45))
}

func prefixOf(backend string) string {
	if backend == primary {
		return ""
	}
	return backend + "__"
}

func (n *node) add(x exchange) {
	n.calls++
	call := uint64(n.calls)
	at := func(d time.Duration) (time.Time, time.Duration) { return began.Add(x.at + d), x.at + d }
	add := func(leg int, backend string, after time.Duration, kind capture.Kind, fill func(*capture.Event)) {
		ev := capture.Event{Call: call, Leg: leg, Backend: backend, Kind: kind, Method: x.method}
		ev.Time, ev.Mono = at(after)
		if fill != nil {
			fill(&ev)
		}
		n.events = append(n.events, ev)
	}
	payload := func(m proto.Message) func(*capture.Event) {
		return func(ev *capture.Event) {
			b, err := proto.Marshal(m)
			if err != nil {
				panic(err)
			}
			ev.Payload, ev.Size = b, len(b)
		}
	}
	timeout := 2 * time.Minute
	add(0, "", 0, capture.Start, func(ev *capture.Event) {
		ev.Peer, ev.Timeout = x.by, timeout
		ev.Metadata = metadata.Pairs(":authority", "localhost", "user-agent", "grpc-go/1.72", "traceparent", fmt.Sprintf("00-%032x-%016x-01", call*7919, call*104729))
	})
	front := ""
	if len(x.backends) == 1 {
		front = prefixOf(x.backends[0])
	}
	add(0, "", 10*time.Microsecond, capture.Request, payload(x.request(front)))
	var joined []byte
	for i, b := range x.backends {
		leg, start := i+1, time.Duration(40+20*i)*time.Microsecond
		if slices.Contains(x.memory, b) || x.code == codes.Unavailable {
			continue
		}
		took := x.took - 90*time.Microsecond
		if i > 0 {
			took = time.Duration(float64(took) * (0.3 + 0.6*n.random.Float64()))
		}
		add(leg, b, start, capture.Start, func(ev *capture.Event) { ev.Timeout = timeout })
		add(leg, b, start+5*time.Microsecond, capture.Request, payload(x.request("")))
		if x.endless {
			continue
		}
		if x.code == codes.OK {
			m := func(prefix string) proto.Message {
				if x.list != nil {
					return x.list(b, prefix)
				}
				return x.reply(prefix)
			}
			add(leg, b, start+took, capture.Reply, payload(m("")))
		}
		add(leg, b, start+took+time.Microsecond, capture.End, func(ev *capture.Event) { ev.Code, ev.Message = x.code, x.message })
	}
	if x.endless {
		return
	}
	for _, b := range x.backends {
		if x.code == codes.OK && x.list != nil {
			part, err := proto.Marshal(x.list(b, prefixOf(b)))
			if err != nil {
				panic(err)
			}
			joined = append(joined, part...)
		}
	}
	if len(x.memory) > 0 {
		add(0, "", x.took-20*time.Microsecond, capture.Header, func(ev *capture.Event) { ev.Metadata = metadata.MD{backend.HeaderKey: x.memory} })
	}
	if x.code == codes.OK && x.list != nil {
		add(0, "", x.took-10*time.Microsecond, capture.Reply, func(ev *capture.Event) { ev.Payload, ev.Size = joined, len(joined) })
	} else if x.code == codes.OK {
		add(0, "", x.took-10*time.Microsecond, capture.Reply, payload(x.reply(front)))
	}
	add(0, "", x.took, capture.End, func(ev *capture.Event) { ev.Code, ev.Message = x.code, x.message })
}

const runtimeService, imageService = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"

// fixed returns a message for any prefix.
func fixed(m proto.Message) func(string) proto.Message {
	return func(string) proto.Message { return m }
}

func (p *pod) metadata() *runtimeapi.PodSandboxMetadata {
	return &runtimeapi.PodSandboxMetadata{Name: p.name, Namespace: p.namespace, Uid: p.uid}
}

// starts creates a pod with its containers.
func (n *node) starts(p *pod, containers ...string) {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: p.metadata(), LogDirectory: "/var/log/pods/" + p.namespace + "_" + p.name + "_" + p.uid,
		Labels: map[string]string{"io.kubernetes.pod.name": p.name, "io.kubernetes.pod.namespace": p.namespace, "io.kubernetes.pod.uid": p.uid},
	}
	handler := ""
	if p.backend != primary {
		handler = "kata"
	}
	t := p.from
	step := func(typical time.Duration) (at, took time.Duration) {
		at, took = t, n.about(typical)
		t += took + n.about(12*time.Millisecond)
		return at, took
	}
	at, took := step(900 * time.Millisecond)
	if p.backend == kata {
		took *= 2
		t += took
	}
	n.add(exchange{at: at, took: took, by: kubelet, method: runtimeService + "RunPodSandbox", backends: []string{p.backend},
		request: func(prefix string) proto.Message {
			if prefix == "" && handler != "" {
				return &runtimeapi.RunPodSandboxRequest{Config: config}
			}
			return &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler}
		},
		reply: func(prefix string) proto.Message {
			return &runtimeapi.RunPodSandboxResponse{PodSandboxId: prefix + p.id}
		}})
	image := func(prefix string) *runtimeapi.ImageSpec {
		if prefix == "" {
			return &runtimeapi.ImageSpec{Image: p.image}
		}
		return &runtimeapi.ImageSpec{Image: kata + "/" + p.image}
	}
	at, took = step(3200 * time.Millisecond)
	n.add(exchange{at: at, took: took, by: kubelet, method: imageService + "PullImage", backends: []string{p.backend},
		request: func(prefix string) proto.Message {
			return &runtimeapi.PullImageRequest{Image: image(prefix), SandboxConfig: config}
		},
		reply: func(prefix string) proto.Message {
			return &runtimeapi.PullImageResponse{ImageRef: image(prefix).GetImage()}
		}})
	for _, name := range containers {
		id := n.id()
		p.containers = append(p.containers, name+" "+id)
		container := &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, LogPath: name + "/0.log",
			Envs: []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte(secret)}, {Key: "PORT", Value: []byte(secret)}},
		}
		at, took = step(160 * time.Millisecond)
		n.add(exchange{at: at, took: took, by: kubelet, method: runtimeService + "CreateContainer", backends: []string{p.backend},
			request: func(prefix string) proto.Message {
				c := proto.Clone(container).(*runtimeapi.ContainerConfig)
				c.Image = image(prefix)
				return &runtimeapi.CreateContainerRequest{PodSandboxId: prefix + p.id, Config: c, SandboxConfig: config}
			},
			reply: func(prefix string) proto.Message {
				return &runtimeapi.CreateContainerResponse{ContainerId: prefix + id}
			}})
		at, took = step(240 * time.Millisecond)
		n.add(exchange{at: at, took: took, by: kubelet, method: runtimeService + "StartContainer", backends: []string{p.backend},
			request: func(prefix string) proto.Message { return &runtimeapi.StartContainerRequest{ContainerId: prefix + id} },
			reply:   fixed(&runtimeapi.StartContainerResponse{})})
		n.status(p, id, name, t)
	}
	n.pods = append(n.pods, p)
}

func (n *node) status(p *pod, id, name string, at time.Duration) {
	n.add(exchange{at: at, took: n.about(1400 * time.Microsecond), by: kubelet, method: runtimeService + "ContainerStatus", backends: []string{p.backend},
		request: func(prefix string) proto.Message { return &runtimeapi.ContainerStatusRequest{ContainerId: prefix + id} },
		reply: func(prefix string) proto.Message {
			return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
				Id: prefix + id, Metadata: &runtimeapi.ContainerMetadata{Name: name}, State: runtimeapi.ContainerState_CONTAINER_RUNNING,
				StartedAt: began.Add(at).UnixNano(), ImageRef: "sha256:" + p.id[:40], Labels: map[string]string{"io.kubernetes.pod.name": p.name, "io.kubernetes.pod.namespace": p.namespace, "io.kubernetes.pod.uid": p.uid},
			}}
		}})
}

// stops removes a pod.
func (n *node) stops(p *pod) {
	t := p.to
	for _, c := range p.containers {
		id := c[len(c)-64:]
		took := n.about(700 * time.Millisecond)
		n.add(exchange{at: t, took: took, by: kubelet, method: runtimeService + "StopContainer", backends: []string{p.backend},
			request: func(prefix string) proto.Message {
				return &runtimeapi.StopContainerRequest{ContainerId: prefix + id, Timeout: 30}
			}, reply: fixed(&runtimeapi.StopContainerResponse{})})
		t += took
	}
	for _, x := range []struct {
		name     string
		request  func(prefix string) proto.Message
		reply    proto.Message
		typicals time.Duration
	}{
		{"StopPodSandbox", func(prefix string) proto.Message {
			return &runtimeapi.StopPodSandboxRequest{PodSandboxId: prefix + p.id}
		}, &runtimeapi.StopPodSandboxResponse{}, 300 * time.Millisecond},
		{"RemovePodSandbox", func(prefix string) proto.Message {
			return &runtimeapi.RemovePodSandboxRequest{PodSandboxId: prefix + p.id}
		}, &runtimeapi.RemovePodSandboxResponse{}, 90 * time.Millisecond},
	} {
		took := n.about(x.typicals)
		n.add(exchange{at: t, took: took, by: kubelet, method: runtimeService + x.name, backends: []string{p.backend}, request: x.request, reply: fixed(x.reply)})
		t += took + 20*time.Millisecond
	}
}

// lives reports whether a pod exists at a time.
func (p *pod) lives(t time.Duration) bool { return t > p.from+8*time.Second && (p.to == 0 || t < p.to) }

// polls makes the calls that kubelet repeats all the time.
func (n *node) polls(until time.Duration) {
	both := []string{primary, kata}
	for t := time.Second; t < until; t += time.Second {
		at := t + n.about(3*time.Millisecond)
		memory := func() (from []string, took time.Duration) {
			switch {
			case down(at):
				return []string{kata}, n.about(1500 * time.Microsecond)
			case tired(at):
				return []string{primary}, 2*time.Second + n.about(3*time.Millisecond)
			}
			return nil, n.about(2600 * time.Microsecond)
		}
		for i, p := range n.pods {
			if p.probed > 0 && p.lives(t) && (t/time.Second+time.Duration(i)*3)%(p.probed/time.Second) == 0 {
				n.probe(p, t+n.about(200*time.Millisecond))
			}
		}
		if t%n.listed != 0 {
			continue
		}
		from, took := memory()
		n.add(exchange{at: at, took: took, by: kubelet, method: runtimeService + "ListPodSandbox", backends: both, memory: from,
			request: fixed(&runtimeapi.ListPodSandboxRequest{}),
			list: func(backend, prefix string) proto.Message {
				var items []*runtimeapi.PodSandbox
				for _, p := range n.pods {
					if p.backend == backend && p.lives(t) {
						items = append(items, &runtimeapi.PodSandbox{Id: prefix + p.id, Metadata: p.metadata(), CreatedAt: began.Add(p.from).UnixNano()})
					}
				}
				return &runtimeapi.ListPodSandboxResponse{Items: items}
			}})
		from, took = memory()
		n.add(exchange{at: at + 4*time.Millisecond, took: took, by: kubelet, method: runtimeService + "ListContainers", backends: both, memory: from,
			request: fixed(&runtimeapi.ListContainersRequest{}),
			list: func(backend, prefix string) proto.Message {
				var items []*runtimeapi.Container
				for _, p := range n.pods {
					for _, c := range p.containers {
						if p.backend == backend && p.lives(t) {
							items = append(items, &runtimeapi.Container{Id: prefix + c[len(c)-64:], PodSandboxId: prefix + p.id, Metadata: &runtimeapi.ContainerMetadata{Name: c[:len(c)-65]}, State: runtimeapi.ContainerState_CONTAINER_RUNNING,
								Labels: map[string]string{"io.kubernetes.pod.name": p.name, "io.kubernetes.pod.namespace": p.namespace, "io.kubernetes.pod.uid": p.uid}})
						}
					}
				}
				return &runtimeapi.ListContainersResponse{Containers: items}
			}})
		if t%(10*time.Second) == 0 {
			n.add(exchange{at: at + 300*time.Millisecond, took: n.about(700 * time.Microsecond), by: kubelet, method: runtimeService + "Status", backends: []string{primary},
				request: fixed(&runtimeapi.StatusRequest{}), reply: fixed(&runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true}}}})})
		}
		if t%(47*time.Second) == 0 {
			n.add(exchange{at: at + 420*time.Millisecond, took: n.about(600 * time.Microsecond), by: crictl, method: runtimeService + "Version", backends: []string{primary},
				request: fixed(&runtimeapi.VersionRequest{Version: "v1"}), reply: fixed(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RuntimeApiVersion: "v1"})})
		}
	}
}

func (n *node) probe(p *pod, at time.Duration) {
	c := p.containers[0]
	id := c[len(c)-64:]
	x := exchange{at: at, took: n.about(28 * time.Millisecond), by: kubelet, method: runtimeService + "ExecSync", backends: []string{p.backend},
		request: func(prefix string) proto.Message {
			return &runtimeapi.ExecSyncRequest{ContainerId: prefix + id, Cmd: []string{"/bin/ready", "--quick"}, Timeout: 1}
		},
		reply: fixed(&runtimeapi.ExecSyncResponse{Stdout: []byte("*****")})}
	if p.backend == kata && down(at) {
		x.code, x.took = codes.Unavailable, 300*time.Microsecond
		x.message = "criproxy: backend kata.io is gone since 03:04:10: connect: connection refused at /run/kata-shim.sock"
	} else if p.backend == primary && tired(at) {
		x.code, x.took, x.message = codes.DeadlineExceeded, time.Second, "command timed out after 1s"
	}
	n.add(x)
}

// record records ten minutes of a node, or as long as the given number of calls takes.
func record(calls int) *node {
	n := &node{random: rand.New(rand.NewPCG(1, 2)), listed: time.Second}
	workloads := []struct {
		name, namespace, image, backend string
		from, to, probed                time.Duration
		containers                      []string
	}{
		{"coredns-6f6b679f8f-2xkzq", "kube-system", "registry.k8s.io/coredns/coredns:v1.12.0", primary, 3, 0, 10, []string{"coredns"}},
		{"kube-proxy-l9tpv", "kube-system", "registry.k8s.io/kube-proxy:v1.37.0", primary, 4, 0, 0, []string{"kube-proxy"}},
		{"node-exporter-4vd2n", "monitoring", "quay.io/prometheus/node-exporter:v1.9.1", primary, 9, 0, 15, []string{"exporter", "auth"}},
		{"web-5d7c9b8f64-9qmlt", "shop", "docker.io/library/nginx:1.29", primary, 31, 330, 10, []string{"nginx", "sidecar"}},
		{"web-7fb4ddc5f9-tw8rp", "shop", "docker.io/library/nginx:1.30", primary, 302, 0, 10, []string{"nginx", "sidecar"}},
		{"checkout-6c4f7c9dd8-bq5x2", "shop", "ghcr.io/shop/checkout:4.2", primary, 44, 0, 10, []string{"checkout"}},
		{"vault-0", "secrets", "docker.io/hashicorp/vault:1.21", kata, 20, 0, 10, []string{"vault"}},
		{"sandbox-runner-1", "ci", "ghcr.io/ci/runner:v9", kata, 75, 228, 10, []string{"runner"}},
		{"sandbox-runner-2", "ci", "ghcr.io/ci/runner:v9", kata, 170, 470, 10, []string{"runner", "cache"}},
		{"sandbox-runner-3", "ci", "ghcr.io/ci/runner:v9", kata, 420, 0, 10, []string{"runner"}},
	}
	until := 10 * time.Minute
	rounds := 1
	if calls > 0 { // more than forty calls a second, most of them probes
		rounds, n.listed = 5, 20*time.Second
		until = time.Duration(calls/44) * time.Second
	}
	n.add(exchange{at: 200 * time.Millisecond, by: kubelet, method: runtimeService + "GetContainerEvents", backends: []string{primary, kata}, request: fixed(&runtimeapi.GetEventsRequest{}), endless: true})
	for round := range rounds {
		for _, w := range workloads {
			p := &pod{name: w.name, namespace: w.namespace, image: w.image, backend: w.backend, from: w.from*time.Second + n.about(time.Second), to: w.to * time.Second, probed: w.probed * time.Second, id: n.id()}
			p.uid = fmt.Sprintf("%s-%s-4%s-9%s-%s", p.id[:8], p.id[8:12], p.id[12:15], p.id[15:18], p.id[18:30])
			if calls > 0 {
				p.to, p.probed = 0, time.Second
			}
			if round > 0 {
				p.name = fmt.Sprintf("%s-%d", p.name, round)
			}
			n.starts(p, w.containers...)
			if p.to > 0 {
				n.stops(p)
			}
		}
	}
	for i, after := range []time.Duration{52, 66, 92, 144, 236, 400, 560} {
		_ = i
		n.add(exchange{at: after * time.Second, took: n.about(900 * time.Millisecond), by: kubelet, method: imageService + "PullImage", backends: []string{primary}, code: codes.NotFound,
			message: `failed to pull and unpack image "ghcr.io/shop/checkout:4.3-rc": not found`,
			request: fixed(&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "ghcr.io/shop/checkout:4.3-rc"}, SandboxConfig: &runtimeapi.PodSandboxConfig{Metadata: n.pods[5].metadata()}})})
	}
	n.polls(until)
	n.inOrder()
	return n
}

func (n *node) inOrder() {
	slices.SortStableFunc(n.events, func(a, b capture.Event) int { return int(a.Mono - b.Mono) })
	for i := range n.events {
		n.events[i].Seq = uint64(i + 1)
	}
}

// write writes the recording as JSON lines.
func (n *node) write(t testing.TB, out io.Writer) {
	t.Helper()
	header := capture.FileHeader{Version: capture.Version, Program: "criproxy 1.0.0", Created: began, Listen: "/run/criproxy/criproxy.sock", Changes: n.backends != nil,
		Backends: n.backends}
	if n.backends == nil {
		header.Backends = []capture.HeaderBackend{{Name: primary, Address: "/run/containerd/containerd.sock"}, {Name: kata, Address: "/run/kata-shim.sock"}}
	}
	i := 0
	require.NoError(t, capture.WriteTo(out, capture.Binlog, &header, codec.NewSchema(), func(ev *capture.Event) error {
		if i == len(n.events) {
			return io.EOF
		}
		*ev = n.events[i]
		i++
		return nil
	}))
}
