package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
)

type filterCase struct {
	listing
	what string
	want []string
}

// filterCases are lists with filters, whatever the state of the runtimes. Pod one
// has two containers, of which one runs; pod two has been stopped.
func filterCases(n *node, one, two *pod) []filterCase {
	pods := func(what string, f *runtimeapi.PodSandboxFilter, want ...string) filterCase {
		return filterCase{listPods(f), what, want}
	}
	containers := func(what string, f *runtimeapi.ContainerFilter, want ...string) filterCase {
		return filterCase{listContainers(f), what, want}
	}
	cut := func(id string) string { return id[:len(id)-40] }
	notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	in := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	return []filterCase{
		pods("id", &runtimeapi.PodSandboxFilter{Id: one.sandbox}, one.sandbox),
		pods("beginning of an id", &runtimeapi.PodSandboxFilter{Id: cut(one.sandbox)}, one.sandbox),
		pods("state", &runtimeapi.PodSandboxFilter{State: notReady}, two.sandbox),
		pods("state, which is zero on the wire, and id", &runtimeapi.PodSandboxFilter{Id: two.sandbox, State: ready}),
		pods("label", &runtimeapi.PodSandboxFilter{LabelSelector: one.config.GetLabels()}, one.sandbox),
		pods("label of two", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "db"}}, one.sandbox, two.sandbox),
		pods("label of nobody", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "db", "none": ""}}),
		containers("id", &runtimeapi.ContainerFilter{Id: one.containers[0]}, one.containers[0]),
		containers("sandbox", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox}, one.containers...),
		containers("beginning of a sandbox's id", &runtimeapi.ContainerFilter{PodSandboxId: cut(one.sandbox)}, one.containers...),
		containers("sandbox and id", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox, Id: one.containers[1]}, one.containers[1]),
		containers("sandbox and the id of another's", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox, Id: two.containers[0]}),
		containers("sandbox and state", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox, State: in(runtimeapi.ContainerState_CONTAINER_RUNNING)}, one.containers[0]),
		containers("state, which is zero on the wire", &runtimeapi.ContainerFilter{State: in(runtimeapi.ContainerState_CONTAINER_CREATED)}),
		containers("label", &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"pod": "db1", "container": "c1"}}, one.containers[1]),
		{listContainerStats(&runtimeapi.ContainerStatsFilter{PodSandboxId: one.sandbox}), "sandbox", one.containers},
		{listContainerStats(&runtimeapi.ContainerStatsFilter{Id: one.containers[0]}), "id", one.containers[:1]},
		{listContainerStats(&runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{"pod": "db1"}}), "label", one.containers},
		{listPodStats(&runtimeapi.PodSandboxStatsFilter{Id: one.sandbox}), "id", []string{one.sandbox}},
		{listPodStats(&runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{"pod": "db1"}}), "label", []string{one.sandbox}},
	}
}

func TestFiltersMeanTheSameWhetherOrNotARuntimeIsThere(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		n.run(0, "web", 2)
		one, two := n.run(1, "db1", 2), n.run(1, "db2", 1)
		_, err := n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: two.sandbox})
		require.NoError(t, err)
		for _, c := range filterCases(n, one, two) {
			got, _ := c.both(n)
			assert.ElementsMatch(t, c.want, idsOf(got), "%s, %s", c.what, c.name)
		}
	})
}
