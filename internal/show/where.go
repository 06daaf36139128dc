package show

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/state"
)

// Place is where a pod or a container is. Its JSON is stable.
type Place struct {
	Backend   string           `json:"backend"`
	Pod       state.Pod        `json:"pod"`                 // all of its containers with it
	Container *state.Container `json:"container,omitempty"` // missing if the id is that of the pod
}

// Where shows to which backend an id belongs: of a pod or a container, as clients see it or as
// the runtime made it, whole or only its beginning, also as kubectl prints it, with a scheme
// before it, or the uid of a pod. It fails if no backend has it.
func Where(ctx context.Context, q Query, id string) error {
	var pods state.Pods
	if _, err := admin.NewClient(q.Path).Read(ctx, "pods", &pods); err != nil {
		return err
	}
	for _, p := range pods.Pods {
		if front := strings.TrimSuffix(p.ID, p.NativeID); front != "" && strings.HasPrefix(front, id) {
			return fmt.Errorf("%q is not an id, but how all ids of %s begin; crictl cuts ids at 13 characters, unless it is called with --no-trunc", id, p.Backend)
		}
	}
	places := find(pods.Pods, id)
	if len(places) == 0 {
		return notFound(&pods, id)
	}
	if q.Format == JSON || q.Format == YAML {
		return Encode(q.Out, q.Format, places)
	}
	now := time.Now()
	for i, place := range places {
		if i > 0 {
			q.Gap()
		}
		printPlace(q.Screen, &place, now)
	}
	return nil
}

// find returns the places of an id.
func find(pods []state.Pod, id string) []Place {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		id = bare
	}
	is := func(ids ...string) bool {
		return slices.ContainsFunc(ids, func(one string) bool { return strings.HasPrefix(one, id) })
	}
	var places []Place
	for _, p := range pods {
		if is(p.ID, p.NativeID, p.UID) {
			places = append(places, Place{Backend: p.Backend, Pod: p})
		}
		for i, c := range p.Containers {
			if is(c.ID, c.NativeID) {
				places = append(places, Place{p.Backend, p, &p.Containers[i]})
			}
		}
	}
	return places
}

// notFound is the error about an id that no backend has.
func notFound(pods *state.Pods, id string) error {
	text := fmt.Sprintf("no backend has a pod or a container whose id begins with %q", id)
	for _, s := range pods.Silent {
		text += fmt.Sprintf("\nbackend %s does not say what it has: %s", s.Backend, s.Error)
	}
	return fmt.Errorf("%s", text)
}

func printPlace(out *Screen, p *Place, now time.Time) {
	pod := strings.TrimPrefix(p.Pod.Namespace+"/"+p.Pod.Name, "/")
	what, id, native, st, made := "pod "+pod, p.Pod.ID, p.Pod.NativeID, p.Pod.State, p.Pod.Created
	if c := p.Container; c != nil {
		what = fmt.Sprintf("container %s of pod %s", c.Name, pod)
		id, native, st, made = c.ID, c.NativeID, c.State, c.Created
	}
	out.Paint(Bold, 0, "%s is on %s", what, p.Backend)
	line := func(name, text string) {
		if text != "" {
			out.Say(2, "%-13s %s", name, text)
		}
	}
	if p.Pod.FromMemory {
		st += ", as it was last known: the backend does not answer"
	}
	line("state", st)
	line("since", since(now, made))
	line("id", id)
	line("runtime's id", native)
	if c := p.Container; c != nil {
		line("image", c.Image)
		line("pod's id", p.Pod.ID)
	} else {
		for _, c := range p.Pod.Containers {
			line("container", fmt.Sprintf("%s %s %s", c.Name, c.State, c.ID))
		}
	}
	line("pod's uid", p.Pod.UID)
	line("handler", p.Pod.Handler)
}
