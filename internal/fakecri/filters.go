package fakecri

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// A filter's id may be the beginning of one, as a request's may. One that is
// unknown or ambiguous matches as it is, that is, nothing.

func (rt *Runtime) fullPodID(id string) string {
	if p, err := rt.pods.get(id); err == nil {
		return p.id
	}
	return id
}

func (rt *Runtime) fullContainerID(id string) string {
	if c, err := rt.containers.get(id); err == nil {
		return c.id
	}
	return id
}

// podFilter returns whether a pod passes. The nil filter lets all pass.
func (rt *Runtime) podFilter(f *runtimeapi.PodSandboxFilter) func(*pod) bool {
	id := rt.fullPodID(f.GetId())
	return func(p *pod) bool {
		return (id == "" || id == p.id) &&
			(f.GetState() == nil || f.GetState().GetState() == p.state()) &&
			selects(f.GetLabelSelector(), p.config.GetLabels())
	}
}

// containerFilter returns whether a container passes. The nil filter lets all
// pass.
func (rt *Runtime) containerFilter(f *runtimeapi.ContainerFilter) func(*container) bool {
	id, podID := rt.fullContainerID(f.GetId()), rt.fullPodID(f.GetPodSandboxId())
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
