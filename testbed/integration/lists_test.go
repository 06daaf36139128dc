package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A population is the content of the lists: on each side a ready pod with a running and an exited container, and a
// stopped pod.
type population struct {
	ready, stopped    map[*side]*pod
	running, finished map[*side]string // front ids
}

func populate(t *testing.T, b *bench, c client) population {
	t.Helper()
	p := population{map[*side]*pod{}, map[*side]*pod{}, map[*side]string{}, map[*side]string{}}
	for _, s := range b.sides() {
		labelled := func(name, color string) *runtimeapi.PodSandboxConfig {
			config := s.choose(s.PodConfig(name))
			config.Labels["color"] = color
			return config
		}
		p.ready[s] = runWith(t, c, s, labelled("ready", "red"), "")
		p.running[s] = p.ready[s].start(t)
		config := p.ready[s].container("exit", "3")
		config.Metadata.Name, config.Labels["color"], config.LogPath = "finished", "blue", "finished/0.log"
		p.finished[s] = p.ready[s].create(t, config)
		_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: p.finished[s]})
		require.NoError(t, err)
		eventually(t, func() error {
			if state := p.ready[s].status(t, p.finished[s]).State; state != runtimeapi.ContainerState_CONTAINER_EXITED {
				return fmt.Errorf("the container is %s", state)
			}
			return nil
		})
		p.stopped[s] = runWith(t, c, s, labelled("stopped", "blue"), "")
		_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.stopped[s].id})
		require.NoError(t, err)
	}
	return p
}

func TestListsHoldItemsOfBothRuntimesByFrontNames(t *testing.T) {
	b := start(t)
	populate(t, b, dial(t, b.proxy.Socket(), v1))
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, b.proxy.Socket(), version)
		t.Run(version+" pods", func(t *testing.T) {
			sameItems(t, b, c, func(c client) ([]*runtimeapi.PodSandbox, error) {
				resp, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
				return resp.GetItems(), err
			}, 2, func(s *side, p *runtimeapi.PodSandbox) {
				p.Id = s.id(p.Id)
				if s == b.two && p.RuntimeHandler == "" {
					p.RuntimeHandler = "other" // its default, as clients name it
				}
			})
		})
		t.Run(version+" containers", func(t *testing.T) {
			sameItems(t, b, c, func(c client) ([]*runtimeapi.Container, error) {
				resp, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
				return resp.GetContainers(), err
			}, 2, func(s *side, c *runtimeapi.Container) {
				c.Id, c.PodSandboxId = s.id(c.Id), s.id(c.PodSandboxId)
				c.Image.Image, c.ImageRef, c.ImageId = s.image(c.Image.Image), s.image(c.ImageRef), s.image(c.ImageId)
				delete(c.Annotations, "x-criproxy/"+second) // the note of how the image was written
			})
		})
		t.Run(version+" images", func(t *testing.T) {
			sameItems(t, b, c, func(c client) ([]*runtimeapi.Image, error) {
				resp, err := c.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
				return resp.GetImages(), err
			}, 2, func(s *side, i *runtimeapi.Image) {
				i.Id = s.image(i.Id)
				for n := range i.RepoTags {
					i.RepoTags[n] = s.image(i.RepoTags[n])
				}
				for n := range i.RepoDigests {
					i.RepoDigests[n] = s.image(i.RepoDigests[n])
				}
			})
		})
		t.Run(version+" container stats", func(t *testing.T) {
			sameItems(t, b, c, func(c client) ([]*runtimeapi.ContainerStats, error) {
				resp, err := c.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{})
				var all []*runtimeapi.ContainerStats
				for _, stats := range resp.GetStats() { // everything but the attributes changes from call to call
					all = append(all, &runtimeapi.ContainerStats{Attributes: stats.Attributes})
				}
				return all, err
			}, 1, func(s *side, stats *runtimeapi.ContainerStats) {
				stats.Attributes.Id = s.id(stats.Attributes.Id)
			})
		})
		t.Run(version+" pod stats", func(t *testing.T) {
			sameItems(t, b, c, func(c client) ([]*runtimeapi.PodSandboxStats, error) {
				resp, err := c.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{})
				var all []*runtimeapi.PodSandboxStats
				for _, stats := range resp.GetStats() {
					linux := &runtimeapi.LinuxPodSandboxStats{}
					for _, one := range stats.Linux.GetContainers() {
						linux.Containers = append(linux.Containers, &runtimeapi.ContainerStats{Attributes: one.Attributes})
					}
					slices.SortFunc(linux.Containers, func(a, b *runtimeapi.ContainerStats) int {
						return strings.Compare(a.Attributes.Id, b.Attributes.Id)
					})
					all = append(all, &runtimeapi.PodSandboxStats{Attributes: stats.Attributes, Linux: linux})
				}
				return all, err
			}, 1, func(s *side, stats *runtimeapi.PodSandboxStats) {
				stats.Attributes.Id = s.id(stats.Attributes.Id)
				for _, c := range stats.Linux.Containers {
					c.Attributes.Id = s.id(c.Attributes.Id)
				}
			})
		})
	}
}

// sameItems asserts that the client's list is the concatenation of the runtimes' lists, the primary's first, with each
// item translated by inFront. Neither list may be empty.
func sameItems[M proto.Message](t *testing.T, b *bench, front client, list func(client) ([]M, error), some int, inFront func(*side, M)) {
	t.Helper()
	got, err := list(front)
	require.NoError(t, err)
	rest := got
	for _, s := range b.sides() {
		items, err := list(s.client)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(items), some)
		require.GreaterOrEqual(t, len(rest), len(items))
		for _, item := range items {
			inFront(s, item)
		}
		// A runtime lists its items in any order; only the order of the runtimes is fixed.
		assert.Equal(t, texts(items), texts(rest[:len(items)]), s.Name)
		rest = rest[len(items):]
	}
	assert.Empty(t, rest)
}

// texts returns the texts of messages, sorted, for comparison.
func texts[M proto.Message](items []M) []string {
	var all []string
	for _, item := range items {
		b, err := prototext.MarshalOptions{Multiline: true}.Marshal(item)
		if err != nil {
			b = []byte(err.Error())
		}
		all = append(all, string(b))
	}
	slices.Sort(all)
	return all
}

func TestFiltersNarrowListsAcrossRuntimes(t *testing.T) {
	b := start(t)
	has := populate(t, b, dial(t, b.proxy.Socket(), v1))
	one, two := b.one, b.two
	red, blue := map[string]string{"color": "red"}, map[string]string{"color": "blue"}

	pods := map[string]struct {
		filter *runtimeapi.PodSandboxFilter
		want   []string
	}{
		"none":              {nil, []string{has.ready[one].id, has.ready[two].id, has.stopped[one].id, has.stopped[two].id}},
		"empty":             {&runtimeapi.PodSandboxFilter{}, []string{has.ready[one].id, has.ready[two].id, has.stopped[one].id, has.stopped[two].id}},
		"id":                {&runtimeapi.PodSandboxFilter{Id: has.ready[one].id}, []string{has.ready[one].id}},
		"id of two.test":    {&runtimeapi.PodSandboxFilter{Id: has.ready[two].id}, []string{has.ready[two].id}},
		"short id":          {&runtimeapi.PodSandboxFilter{Id: short(has.ready[one].id)}, []string{has.ready[one].id}},
		"short two.test":    {&runtimeapi.PodSandboxFilter{Id: short(has.ready[two].id)}, []string{has.ready[two].id}},
		"state":             {&runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}}, []string{has.stopped[one].id, has.stopped[two].id}},
		"label":             {&runtimeapi.PodSandboxFilter{LabelSelector: red}, []string{has.ready[one].id, has.ready[two].id}},
		"id and label":      {&runtimeapi.PodSandboxFilter{Id: has.ready[two].id, LabelSelector: red}, []string{has.ready[two].id}},
		"id, other label":   {&runtimeapi.PodSandboxFilter{Id: has.ready[two].id, LabelSelector: blue}, nil},
		"unknown prefix":    {&runtimeapi.PodSandboxFilter{Id: "three.test__" + two.bare(t, has.ready[two].id)}, nil},
		"wrong prefix":      {&runtimeapi.PodSandboxFilter{Id: two.id(one.bare(t, has.ready[one].id))}, nil},
		"two.test, no pref": {&runtimeapi.PodSandboxFilter{Id: two.bare(t, has.ready[two].id)}, nil},
	}
	containers := map[string]struct {
		filter *runtimeapi.ContainerFilter
		want   []string
	}{
		"none":           {nil, []string{has.running[one], has.running[two], has.finished[one], has.finished[two]}},
		"id":             {&runtimeapi.ContainerFilter{Id: has.running[one]}, []string{has.running[one]}},
		"id of two.test": {&runtimeapi.ContainerFilter{Id: has.running[two]}, []string{has.running[two]}},
		"short id":       {&runtimeapi.ContainerFilter{Id: short(has.running[one])}, []string{has.running[one]}},
		"short two.test": {&runtimeapi.ContainerFilter{Id: short(has.running[two])}, []string{has.running[two]}},
		"pod":            {&runtimeapi.ContainerFilter{PodSandboxId: has.ready[one].id}, []string{has.running[one], has.finished[one]}},
		"pod, two.test":  {&runtimeapi.ContainerFilter{PodSandboxId: has.ready[two].id}, []string{has.running[two], has.finished[two]}},
		"short pod":      {&runtimeapi.ContainerFilter{PodSandboxId: short(has.ready[two].id)}, []string{has.running[two], has.finished[two]}},
		"pod of none":    {&runtimeapi.ContainerFilter{PodSandboxId: has.stopped[two].id}, nil},
		"state":          {&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, []string{has.running[one], has.running[two]}},
		"label":          {&runtimeapi.ContainerFilter{LabelSelector: blue}, []string{has.finished[one], has.finished[two]}},
		"pod and state":  {&runtimeapi.ContainerFilter{PodSandboxId: has.ready[two].id, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}}, []string{has.finished[two]}},
		"pod and id":     {&runtimeapi.ContainerFilter{PodSandboxId: has.ready[two].id, Id: has.running[two]}, []string{has.running[two]}},
		"of two":         {&runtimeapi.ContainerFilter{PodSandboxId: has.ready[one].id, Id: has.running[two]}, nil},
		"unknown":        {&runtimeapi.ContainerFilter{PodSandboxId: "three.test__" + one.bare(t, has.ready[one].id)}, nil},
	}
	containerStats := map[string]struct {
		filter *runtimeapi.ContainerStatsFilter
		want   []string
	}{
		"none":     {nil, []string{has.running[one], has.running[two], has.finished[one], has.finished[two]}},
		"id":       {&runtimeapi.ContainerStatsFilter{Id: has.running[two]}, []string{has.running[two]}},
		"short id": {&runtimeapi.ContainerStatsFilter{Id: short(has.running[two])}, []string{has.running[two]}},
		"pod":      {&runtimeapi.ContainerStatsFilter{PodSandboxId: has.ready[one].id}, []string{has.running[one], has.finished[one]}},
		"label":    {&runtimeapi.ContainerStatsFilter{LabelSelector: blue}, []string{has.finished[one], has.finished[two]}},
		"of two":   {&runtimeapi.ContainerStatsFilter{PodSandboxId: has.ready[one].id, Id: has.running[two]}, nil},
		"unknown":  {&runtimeapi.ContainerStatsFilter{Id: "three.test__" + one.bare(t, has.running[one])}, nil},
	}
	podStats := map[string]struct {
		filter *runtimeapi.PodSandboxStatsFilter
		want   []string
	}{
		"none":     {nil, []string{has.ready[one].id, has.ready[two].id}},
		"id":       {&runtimeapi.PodSandboxStatsFilter{Id: has.ready[two].id}, []string{has.ready[two].id}},
		"short id": {&runtimeapi.PodSandboxStatsFilter{Id: short(has.ready[two].id)}, []string{has.ready[two].id}},
		"label":    {&runtimeapi.PodSandboxStatsFilter{LabelSelector: red}, []string{has.ready[one].id, has.ready[two].id}},
		"unknown":  {&runtimeapi.PodSandboxStatsFilter{Id: "three.test__" + one.bare(t, has.ready[one].id)}, nil},
	}
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, b.proxy.Socket(), version)
		for name, test := range pods {
			t.Run(version+" pods by "+name, func(t *testing.T) {
				resp, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: test.filter})
				require.NoError(t, err)
				assert.ElementsMatch(t, test.want, ids(resp.Items, (*runtimeapi.PodSandbox).GetId))
			})
		}
		for name, test := range containers {
			t.Run(version+" containers by "+name, func(t *testing.T) {
				resp, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: test.filter})
				require.NoError(t, err)
				assert.ElementsMatch(t, test.want, ids(resp.Containers, (*runtimeapi.Container).GetId))
			})
		}
		for name, test := range containerStats {
			t.Run(version+" container stats by "+name, func(t *testing.T) {
				resp, err := c.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{Filter: test.filter})
				require.NoError(t, err)
				assert.ElementsMatch(t, test.want, ids(resp.Stats, func(s *runtimeapi.ContainerStats) string { return s.Attributes.Id }))
			})
		}
		for name, test := range podStats {
			t.Run(version+" pod stats by "+name, func(t *testing.T) {
				resp, err := c.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: test.filter})
				require.NoError(t, err)
				assert.ElementsMatch(t, test.want, ids(resp.Stats, func(s *runtimeapi.PodSandboxStats) string { return s.Attributes.Id }))
			})
		}
	}
}

// ids returns the ids of items.
func ids[M any](items []M, id func(M) string) []string {
	var all []string
	for _, item := range items {
		all = append(all, id(item))
	}
	return all
}

// short returns the beginning of a front id, as crictl shows it.
func short(id string) string { return id[:len(id)-64+13] }

// newRequest returns an empty request of a method of v1.
func newRequest(t testing.TB, method string) protoreflect.Message {
	t.Helper()
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			if fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name()) == method {
				typ, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
				require.NoError(t, err)
				return typ.New()
			}
		}
	}
	require.Fail(t, "no such method", method)
	return nil
}
