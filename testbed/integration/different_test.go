package integration

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/criproxy/criproxy/internal/fakecri"

	"github.com/criproxy/criproxy/testbed/host"
)

// A pair is two runtimes in memory behind one proxy. One of them behaves unlike any real runtime here. The clients are
// kubelet's own, and request lists as streams, as kubelet does with CRIListStreaming.
type pair struct {
	proxy    *proxy
	runtimes []*fakecri.Runtime
	pods     []string // front ids, one on each runtime
	runtime  internalapi.RuntimeService
	images   internalapi.ImageManagerService
}

func newPair(t *testing.T, primary, other fakecri.Config) *pair {
	t.Helper()
	one, oneSocket := fake(t, primary)
	two, twoSocket := fake(t, other)
	p := &pair{runtimes: []*fakecri.Runtime{one, two}}
	p.proxy = startProxy(t, "-connect", connect(oneSocket, twoSocket))
	require.NoError(t, p.proxy.waitForAll(t.Context()))
	endpoint := "unix://" + p.proxy.socket
	var err error
	p.runtime, err = criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(callTimeout).WithUseStreaming(true).Build(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { p.runtime.Close(context.Background()) })
	p.images, err = criclient.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(callTimeout).WithUseStreaming(true).Build(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { p.images.Close(context.Background()) })
	for i := range p.runtimes {
		p.pods = append(p.pods, p.run(t, i, fmt.Sprint("pod", i)))
	}
	return p
}

// run runs a pod with a container on runtime i, and returns the pod's front id.
func (p *pair) run(t *testing.T, i int, name string) string {
	t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Annotations: map[string]string{},
	}
	image := "busybox"
	if i == 1 {
		config.Annotations[target] = second
		image = second + "/busybox"
	}
	pod, err := p.runtime.RunPodSandbox(t.Context(), config, "")
	require.NoError(t, err)
	bounded, cancel := host.Bounded(t.Context()) // the client bounds all calls but this one
	defer cancel()
	ref, err := p.images.PullImage(bounded, &runtimeapi.ImageSpec{Image: image}, nil, config)
	require.NoError(t, err)
	id, err := p.runtime.CreateContainer(t.Context(), pod, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: ref},
	}, config)
	require.NoError(t, err)
	require.NoError(t, p.runtime.StartContainer(t.Context(), id))
	return pod
}

// listsAreWhole asserts that each list has the items of both runtimes, each once, and that the clients still use
// streams: one Unimplemented turns streams off for a kubelet's life.
func (p *pair) listsAreWhole(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	pods, err := p.runtime.ListPodSandbox(ctx, nil)
	require.NoError(t, err)
	assert.ElementsMatch(t, p.pods, ids(pods, (*runtimeapi.PodSandbox).GetId))
	containers, err := p.runtime.ListContainers(ctx, nil)
	require.NoError(t, err)
	assert.ElementsMatch(t, p.pods, ids(containers, (*runtimeapi.Container).GetPodSandboxId))
	stats, err := p.runtime.ListContainerStats(ctx, nil)
	require.NoError(t, err)
	assert.ElementsMatch(t, ids(containers, (*runtimeapi.Container).GetId), ids(stats, func(s *runtimeapi.ContainerStats) string { return s.Attributes.Id }))
	podStats, err := p.runtime.ListPodSandboxStats(ctx, nil)
	require.NoError(t, err)
	assert.ElementsMatch(t, p.pods, ids(podStats, func(s *runtimeapi.PodSandboxStats) string { return s.Attributes.Id }))
	_, err = p.runtime.ListPodSandboxMetrics(ctx)
	require.NoError(t, err)
	images, err := p.images.ListImages(ctx, nil)
	require.NoError(t, err)
	assert.Len(t, images, len(p.runtimes))
	assert.True(t, asksForStreams(p.runtime), "the latch of the runtime client")
	assert.True(t, asksForStreams(p.images), "the latch of the image client")
}

// asksForStreams reads the latch in which a client remembers whether the runtime has the Stream* methods.
func asksForStreams(client any) bool {
	return reflect.ValueOf(client).Elem().FieldByName("useStreaming").FieldByName("v").Uint() != 0
}

func TestKubeletGetsStreamedListsFromOldRuntimes(t *testing.T) {
	none, all := fakecri.Config{NoStreams: true}, fakecri.Config{BatchSize: 1}
	for name, configs := range map[string][2]fakecri.Config{
		"the primary": {none, all}, "the other": {all, none}, "both": {none, none}, "an old one": {all, {Packages: []string{fakecri.V1alpha2}, NoStreams: true, NoMetrics: true}},
	} {
		t.Run(name, func(t *testing.T) { newPair(t, configs[0], configs[1]).listsAreWhole(t) })
	}
}

func TestAKubeletGetsEventsOfARuntimeWithoutEvents(t *testing.T) {
	for _, mode := range []fakecri.EventMode{fakecri.EventsUnimplemented, fakecri.EventsCleanEOF} {
		t.Run(string(mode), func(t *testing.T) {
			p := newPair(t, fakecri.Config{}, fakecri.Config{Events: mode})
			ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
			defer cancel()
			events, subscribed := make(chan *runtimeapi.ContainerEventResponse, 100), make(chan struct{})
			ended := make(chan error, 1)
			go func() {
				ended <- p.runtime.GetContainerEvents(ctx, events, func(runtimeapi.RuntimeService_GetContainerEventsClient) { close(subscribed) })
			}()
			<-subscribed
			require.NoError(t, p.runtimes[0].WaitSubscribers(ctx, 1))
			for i := range p.runtimes {
				pod := p.run(t, i, fmt.Sprint("later", i))
				for started := false; !started; {
					select {
					case e := <-events:
						started = e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT && e.PodSandboxStatus.GetId() == pod
					case err := <-ended:
						require.Fail(t, "the stream ended", "%v", err)
					case <-ctx.Done():
						require.Fail(t, "no event of the container's start", "of runtime %d", i)
					}
				}
				p.pods = append(p.pods, pod)
			}
			assert.Len(t, p.pods, 4)
		})
	}
}

func TestAKubeletReadsMetricsByThePrimarysDescriptors(t *testing.T) {
	p := newPair(t, fakecri.Config{}, fakecri.Config{Metrics: fakecri.CRIOMetrics})
	descriptors, err := p.runtime.ListMetricDescriptors(t.Context())
	require.NoError(t, err)
	labels := map[string][]string{}
	for _, d := range descriptors {
		assert.NotContains(t, labels, d.Name, "a descriptor each")
		labels[d.Name] = d.LabelKeys
	}
	pods, err := p.runtime.ListPodSandboxMetrics(t.Context())
	require.NoError(t, err)
	assert.ElementsMatch(t, p.pods, ids(pods, (*runtimeapi.PodSandboxMetrics).GetPodSandboxId))
	for _, pod := range pods {
		for _, container := range pod.ContainerMetrics {
			for _, m := range container.Metrics {
				at := slices.Index(labels[m.Name], "id")
				require.GreaterOrEqual(t, at, 0, "%s has the label id", m.Name)
				require.Len(t, m.LabelValues, len(labels[m.Name]), m.Name)
				// Only the last part: cgroup paths and bare ids are both in use.
				assert.Contains(t, path.Base(m.LabelValues[at]), container.ContainerId, "%s: %v", m.Name, m.LabelValues)
			}
		}
	}
}

func TestTheLogNamesACgroupDriverThatDiffers(t *testing.T) {
	p := newPair(t, fakecri.Config{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}, fakecri.Config{CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD})
	config, err := p.runtime.RuntimeConfig(t.Context())
	require.NoError(t, err)
	assert.Equal(t, runtimeapi.CgroupDriver_CGROUPFS, config.Linux.CgroupDriver)
	eventually(t, func() error {
		if text := "backend " + second + " uses the cgroup driver"; !strings.Contains(p.proxy.log(), text) {
			return fmt.Errorf("%q is not in the log", text)
		}
		return nil
	})
	p.listsAreWhole(t)
}

func TestAKubeletDoesNotWaitForARuntimeThatIsSlow(t *testing.T) {
	p := newPair(t, fakecri.Config{}, fakecri.Config{})
	p.listsAreWhole(t)
	asked := func(method string) int { return len(p.runtimes[1].Calls(method)) }
	more := func(method string, before int) { // waits until criproxy has called the method more often
		eventually(t, func() error {
			if asked(method) <= before {
				return fmt.Errorf("%s was called %d times", method, before)
			}
			return nil
		})
	}
	more("PodSandboxStatus", 0)
	more("ListPodSandbox", asked("ListPodSandbox")+1) // one round later, memory has the status
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	p.runtimes[1].Fault(func(ctx context.Context, _ string, _ any) error {
		select {
		case <-ctx.Done():
		case <-released:
		}
		return nil
	})
	p.listsAreWhole(t) // while the runtime answers nothing
	status, err := p.runtime.PodSandboxStatus(t.Context(), p.pods[1], false)
	require.NoError(t, err)
	assert.True(t, proto.Equal(&runtimeapi.PodSandboxMetadata{Name: "pod1", Namespace: "default", Uid: "pod1"}, status.Status.Metadata))
	p.pods = append(p.pods, p.run(t, 0, "meanwhile"))
	p.listsAreWhole(t)
}
