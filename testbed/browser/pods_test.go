package browser

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Pods that are older than criproxy, on a runtime that is gone, were on the primary in the page: what listed them first
// was criproxy's own call, without a prefix. Issue 43.
func TestPodsOlderThanTheRecordingAreOnTheirRuntime(t *testing.T) {
	for _, ids := range []string{"prefix", "native"} {
		t.Run(ids, func(t *testing.T) {
			m := startWith(t, func(dir string) {
				for runtime, pod := range map[string]string{"alpha": "web", "beta": "vault"} {
					conn, err := grpc.NewClient("unix:"+filepath.Join(dir, runtime), grpc.WithTransportCredentials(insecure.NewCredentials()))
					require.NoError(t, err)
					runPod(t, runtimeapi.NewRuntimeServiceClient(conn), pod, "")
					require.NoError(t, conn.Close())
				}
			}, "-ids", ids)
			onRuntimes := `((groups) => { let at; for (const l of document.querySelectorAll(".lane")) { const name = l.firstChild.firstChild.textContent; if (l.classList.contains("group")) at = name; else (groups[at] ??= []).push(name); } return groups["primary"]?.join() === "web" && groups["kata.io"]?.join() === "vault" && Object.keys(groups).length === 2; })({})`
			is := func(want string) {
				t.Helper()
				testkit.Eventually(t, "the second runtime is "+want, func() bool { all := m.history(); return len(all) > 0 && all[len(all)-1].What == want })
			}
			is(capture.Up)
			up := open(t, m.link, dark(false))
			up.see(`document.querySelector("#link:not(.lost)")`)
			up.keys("2")
			up.see(onRuntimes)
			m.vault.Kill()
			is(capture.Gone)
			_, err := m.client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			m.show("-admin", m.admin)
			gone := open(t, m.link, dark(false))
			for _, p := range []*tab{up, gone} {
				p.keys("2")
				p.see(`document.querySelector("#strip .cond.gone") && ` + onRuntimes)
			}
		})
	}
}

// The first call about a pod made its lane begin at that call.
func TestACallAboutAPodLeavesItsLaneAsLongAsItWas(t *testing.T) {
	for _, calls := range []bool{false, true} {
		n := &node{random: rand.New(rand.NewPCG(1, 2))}
		old, young, left := n.id(), n.id(), n.id()
		list := func(at time.Duration, names map[string]string) {
			n.add(exchange{at: at, took: time.Millisecond, by: kubelet, method: runtimeService + "ListPodSandbox", backends: []string{kata}, request: fixed(&runtimeapi.ListPodSandboxRequest{}),
				reply: func(prefix string) proto.Message {
					var reply runtimeapi.ListPodSandboxResponse
					for id, name := range names {
						created := began.Add(-time.Hour)
						if id == young {
							created = began.Add(100 * time.Second)
						}
						reply.Items = append(reply.Items, &runtimeapi.PodSandbox{Id: prefix + id, Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: name}, CreatedAt: created.UnixNano()})
					}
					return &reply
				}})
		}
		list(0, map[string]string{old: "old", left: "left"})
		if calls {
			for at, id := range map[time.Duration]string{150 * time.Second: left, 400 * time.Second: old, 401 * time.Second: young} {
				n.add(exchange{at: at, took: time.Second, by: crictl, method: runtimeService + "PortForward", backends: []string{kata},
					request: func(prefix string) proto.Message { return &runtimeapi.PortForwardRequest{PodSandboxId: prefix + id} }, reply: fixed(&runtimeapi.PortForwardResponse{})})
			}
		}
		list(300*time.Second, map[string]string{old: "old", young: "young"})
		list(500*time.Second, map[string]string{old: "old", young: "young"})
		n.inOrder()
		address, _ := report(t, n)
		p := open(t, address+"#view=pods")
		p.see(`document.querySelectorAll(".lane:not(.group)").length === 3`)
		lives := value[map[string][]float64](p, `Object.fromEntries([...document.querySelectorAll(".lane:not(.group)")].map((l) => [l.firstChild.firstChild.textContent, [...l.querySelectorAll("rect.life")].flatMap((r) => ["x", "width"].map((a) => Number(r.getAttribute(a)) / (l.querySelector("svg").clientWidth - 16)))]))`)
		for name, want := range map[string][]float64{"old": {0, 1}, "young": {0.2, 0.8}, "left": {0, 0.6}} {
			assert.InDeltaSlice(t, want, lives[name], 0.01, "%s, calls: %t", name, calls)
		}
	}
}

// A container that ran before the recording began had a bar from its first status on, or none.
func TestAContainerThatAListShowsRunsAllTheTime(t *testing.T) {
	n := &node{random: rand.New(rand.NewPCG(1, 2))}
	sandbox, main, idle, late := n.id(), n.id(), n.id(), n.id()
	labels := map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "web"}
	list := func(at time.Duration) {
		n.add(exchange{at: at, took: time.Millisecond, by: kubelet, method: runtimeService + "ListPodSandbox", backends: []string{kata}, request: fixed(&runtimeapi.ListPodSandboxRequest{}),
			reply: func(prefix string) proto.Message {
				return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: prefix + sandbox, Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "web"}, CreatedAt: began.Add(-time.Hour).UnixNano()}}}
			}})
		n.add(exchange{at: at, took: time.Millisecond, by: kubelet, method: runtimeService + "ListContainers", backends: []string{kata}, request: fixed(&runtimeapi.ListContainersRequest{}),
			reply: func(prefix string) proto.Message {
				var all []*runtimeapi.Container
				for name, id := range map[string]string{"main": main, "idle": idle, "late": late} {
					c := &runtimeapi.Container{Id: prefix + id, PodSandboxId: prefix + sandbox, Metadata: &runtimeapi.ContainerMetadata{Name: name}, State: runtimeapi.ContainerState_CONTAINER_RUNNING}
					if name != "idle" { // as of kubelet
						c.Labels = labels
					}
					if name == "late" && at != 200*time.Second {
						c.State = runtimeapi.ContainerState_CONTAINER_EXITED
					}
					all = append(all, c)
				}
				return &runtimeapi.ListContainersResponse{Containers: all}
			}})
	}
	list(0)
	n.add(exchange{at: 100 * time.Second, took: time.Second, by: kubelet, method: runtimeService + "StartContainer", backends: []string{kata},
		request: func(prefix string) proto.Message {
			return &runtimeapi.StartContainerRequest{ContainerId: prefix + late}
		}, reply: fixed(&runtimeapi.StartContainerResponse{})})
	list(200 * time.Second)
	n.status(&pod{name: "web", namespace: "ns", uid: "web", backend: kata, id: sandbox}, main, "main", 300*time.Second)
	n.add(exchange{at: 400 * time.Second, took: time.Second, by: kubelet, method: runtimeService + "StopContainer", backends: []string{kata},
		request: func(prefix string) proto.Message { return &runtimeapi.StopContainerRequest{ContainerId: prefix + late} }, reply: fixed(&runtimeapi.StopContainerResponse{})})
	list(500 * time.Second)
	n.inOrder()
	address, _ := report(t, n)
	p := open(t, address+"#view=pods")
	p.see(`document.querySelectorAll("rect.live").length === 3`)
	bars := value[[][]float64](p, `[...document.querySelectorAll("rect.live")].map((r) => ["x", "width"].map((a) => Number(r.getAttribute(a)) / (r.closest("svg").clientWidth - 16)))`)
	slices.SortFunc(bars, slices.Compare)
	for i, want := range [][]float64{{0, 1}, {0, 1}, {0.2, 0.6}} {
		assert.InDeltaSlice(t, want, bars[i], 0.01)
	}
}
