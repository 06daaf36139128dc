package fakecri

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// The id in a filter may be the beginning of an id, as in a request. If it is unknown or ambiguous,
// the filter matches nothing.

func (t *table[T]) whole(id string) string {
	if whole, err := t.find(id); err == nil {
		return whole
	}
	return id
}

// podFilter returns a function that reports whether a pod matches f. All pods match a nil filter.
func (rt *Runtime) podFilter(f *runtimeapi.PodSandboxFilter) func(*pod) bool {
	id := rt.pods.whole(f.GetId())
	return func(p *pod) bool {
		return (id == "" || id == p.id) &&
			(f.GetState() == nil || f.GetState().GetState() == p.state()) &&
			selects(f.GetLabelSelector(), p.config.GetLabels())
	}
}

// containerFilter returns a function that reports whether a container matches f. All containers match
// a nil filter.
func (rt *Runtime) containerFilter(f *runtimeapi.ContainerFilter) func(*container) bool {
	id, podID := rt.containers.whole(f.GetId()), rt.pods.whole(f.GetPodSandboxId())
	return func(c *container) bool {
		return (id == "" || id == c.id) &&
			(podID == "" || podID == c.pod.id) &&
			(f.GetState() == nil || f.GetState().GetState() == c.state) &&
			selects(f.GetLabelSelector(), c.config.GetLabels())
	}
}

// selects reports whether labels contains all pairs of selector.
func selects(selector, labels map[string]string) bool {
	for k, want := range selector {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}
