package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/internal/testing/invariant"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A history is a random sequence of calls and faults, with the results that clients must see.
type history struct {
	*node
	rand  *rand.Rand
	pods  [][]*pod          // :: runtime, those not removed
	gone  []map[string]bool // :: runtime → its items when it went, as words; nil while it is up
	lines []string          // the steps, for a failure
	made  int               // pods so far
}

func newHistory(n *node, seed uint64) *history {
	return &history{
		node: n, rand: rand.New(rand.NewPCG(seed, 7)),
		pods: make([][]*pod, len(n.runtimes)), gone: make([]map[string]bool, len(n.runtimes)),
	}
}

// stepThere does something with a runtime that is up.
func (h *history) stepThere(i int) {
	h.Helper()
	m := h.runtimes[i]
	switch what := h.rand.IntN(10); {
	case what < 3 || what < 7 && len(h.pods[i]) == 0:
		h.made++
		h.note("run %s on %d", fmt.Sprint("p", h.made), i)
		h.pods[i] = append(h.pods[i], h.run(i, fmt.Sprint("p", h.made), h.rand.IntN(3)))
	case what == 3:
		p := h.any(i)
		h.note("stop %s on %d", p.sandbox, i)
		_, err := h.StopPodSandbox(h.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
		h.require(err)
	case what == 4:
		p := h.any(i)
		h.note("remove %s on %d", p.sandbox, i)
		_, err := h.RemovePodSandbox(h.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
		h.require(err)
		h.pods[i] = slices.DeleteFunc(h.pods[i], func(o *pod) bool { return o == p })
	case what < 7:
		h.note("a container of %d exits by itself", i)
		h.exitOne(i)
	case what == 7:
		h.note("kill %d", i)
		h.gone[i] = h.holds(i)
		m.Kill()
		h.isDown(i)
	case what == 8:
		h.note("freeze %d", i)
		h.gone[i] = h.holds(i)
		m.Freeze()
		h.isDown(i)
	default:
		h.note("restart the proxy")
		h.stop()
		h.start()
		for j := range h.runtimes {
			if h.gone[j] == nil {
				h.isUp(j)
			}
		}
	}
}

// stepGone does something with a runtime that is gone.
func (h *history) stepGone(i int) {
	h.Helper()
	switch h.rand.IntN(3) {
	case 0:
		if len(h.pods[i]) > 0 {
			p := h.any(i)
			h.note("stop %s on %d in vain", p.sandbox, i)
			_, err := h.StopPodSandbox(h.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
			require.Equal(h, codes.Unavailable.String(), status.Code(err).String(), "%v, after:\n%s", err, h)
		}
	case 1: // something changes behind the proxy's back
		h.note("a container of %d exits unseen", i)
		h.exitOne(i)
	default:
		h.note("%d is back", i)
		m := h.runtimes[i]
		if m.Ice.Load() != nil {
			m.Thaw()
		} else {
			m.Start()
		}
		h.isUp(i)
		h.gone[i] = nil
	}
}

func (h *history) any(i int) *pod { return h.pods[i][h.rand.IntN(len(h.pods[i]))] }

// exitOne ends a running container of runtime i, if it has one, without the proxy.
func (h *history) exitOne(i int) {
	for _, c := range h.runtimes[i].Containers() {
		if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			h.require(h.runtimes[i].Exit(c.GetId(), 1))
			return
		}
	}
}

// look compares everything that a client can see with what it must see. It gets each
// list in one message and as a stream, which must not differ.
func (h *history) look() {
	h.Helper()
	var want []string
	for i := range h.runtimes {
		holds := h.gone[i]
		if holds == nil {
			holds = h.holds(i)
		}
		for word := range holds {
			want = append(want, word)
		}
	}
	for form, list := range map[string]func(listing) ([]proto.Message, error){
		"unary":    func(l listing) ([]proto.Message, error) { return l.unary(h.node) },
		"streamed": func(l listing) ([]proto.Message, error) { return l.streamed(h.node) },
	} {
		var got []string
		for _, l := range []listing{listPods(nil), listContainers(nil)} {
			items, err := list(l)
			h.require(err)
			for _, item := range items {
				got = append(got, word(idOf(item), item))
			}
		}
		require.NoError(h, invariant.Same(want, got), "%s, after:\n%s", form, h)
	}
}

// holds returns a word for each pod and container that runtime i holds itself.
func (h *history) holds(i int) map[string]bool {
	words := map[string]bool{}
	for _, p := range h.runtimes[i].Pods() {
		words[word(h.front(i, p.GetId()), p)] = true
	}
	for _, c := range h.runtimes[i].Containers() {
		words[word(h.front(i, c.GetId()), c)] = true
	}
	return words
}

// word returns an item's front id with its state.
func word(id string, item proto.Message) string {
	switch item := item.(type) {
	case *runtimeapi.PodSandbox:
		return "pod " + id + " " + item.GetState().String()
	case *runtimeapi.Container:
		return "container " + id + " " + item.GetState().String()
	}
	panic(fmt.Sprintf("no word for a %T", item))
}

func (h *history) note(format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *history) require(err error) {
	h.Helper()
	require.NoError(h, err, "after:\n%s", h)
}

// String returns all that was done.
func (h *history) String() string { return strings.Join(h.lines, "\n") }
