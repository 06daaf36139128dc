package fakecri

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// A filter's id may be the beginning of one, as a request's may. One that is
// unknown or ambiguous matches as it is, that is, nothing.

func (t *table[T]) whole(id string) string {
	if r, err := t.row(id); err == nil {
		return r.id
	}
	return id
}

// podFilter returns whether a pod passes. The nil filter lets all pass.
func (rt *Runtime) podFilter(f *runtimeapi.PodSandboxFilter) func(*pod) bool {
	id := rt.pods.whole(f.GetId())
	return func(p *pod) bool {
		return (id == "" || id == p.id) &&
			(f.GetState() == nil || f.GetState().GetState() == p.state()) &&
			selects(f.GetLabelSelector(), p.config.GetLabels())
	}
}

// containerFilter returns whether a container passes. The nil filter lets all
// pass.
func (rt *Runtime) containerFilter(f *runtimeapi.ContainerFilter) func(*container) bool {
	id, podID := rt.containers.whole(f.GetId()), rt.pods.whole(f.GetPodSandboxId())
	return func(c *container) bool {
		return (id == "" || id == c.id) &&
			(podID == "" || podID == c.pod.id) &&
			(f.GetState() == nil || f.GetState().GetState() == c.state) &&
			selects(f.GetLabelSelector(), c.config.GetLabels())
	}
}

// selects reports whether labels has all that selector has.
func selects(selector, labels map[string]string) bool {
	for k, want := range selector {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}
