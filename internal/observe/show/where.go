package show

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// Place is where a pod or a container is. Its JSON is stable.
type Place struct {
	Node      string           `json:"node,omitempty"` // if several were asked
	Backend   string           `json:"backend"`
	Pod       admin.Pod        `json:"pod"`                 // all of its containers with it
	Container *admin.Container `json:"container,omitempty"` // missing if the id is the pod's
}

// Where shows which backend, and which of several nodes, ids belong to: the id of a pod or container, as clients see it or as the
// runtime made it, or the uid of a pod, or its name. An id may be cut short, or have a scheme before it, as kubectl prints it.
// Where fails if no backend has one of the ids.
func Where(ctx context.Context, q Query, ids ...string) error {
	all := read[admin.Pods](ctx, q, "pods")
	if err := all[0].Err; err != nil && q.Nodes == nil {
		return err
	}
	places := []Place{}
	var unknown []admin.Silent
	for _, a := range all {
		if a.Value == nil {
			continue
		}
		unknown = append(unknown, a.Value.Silent...)
		for _, id := range ids {
			for _, p := range a.Value.Pods {
				if front := strings.TrimSuffix(p.ID, p.NativeID); q.Nodes == nil && front != "" && strings.HasPrefix(front, id) {
					return fmt.Errorf("%q is not enough of an id: all ids of %s begin like this; crictl shows 13 characters of an id, and all with --no-trunc", id, p.Backend)
				}
			}
			for _, place := range find(a.Value.Pods, id) {
				place.Node = a.Name
				places = append(places, place)
			}
		}
	}
	var err error
	switch {
	case len(places) == 0:
		err = notFound(unknown, strings.Join(ids, ", "))
	case !q.People():
		err = Encode(q.Out, q.Format, places)
	default:
		for i, place := range places {
			if i > 0 {
				q.Gap()
			}
			printPlace(q.Screen, &place, time.Now())
		}
	}
	return errors.Join(err, Finish(q, all))
}

// find returns the places of an id.
func find(pods []admin.Pod, id string) []Place {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		id = bare
	}
	is := func(ids ...string) bool {
		return slices.ContainsFunc(ids, func(one string) bool { return strings.HasPrefix(one, id) })
	}
	var places []Place
	for _, p := range pods {
		if is(p.ID, p.NativeID, p.UID) || p.Name == id || p.Namespace+"/"+p.Name == id {
			places = append(places, Place{Backend: p.Backend, Pod: p})
		}
		for i, c := range p.Containers {
			if is(c.ID, c.NativeID) {
				places = append(places, Place{Backend: p.Backend, Pod: p, Container: &p.Containers[i]})
			}
		}
	}
	return places
}

// notFound returns the error about an id that no backend has.
func notFound(unknown []admin.Silent, id string) error {
	text := fmt.Sprintf("no backend has a pod whose NAME or NAMESPACE/NAME is %q, or a pod or a container whose id or uid begins with it", id)
	for _, s := range unknown {
		text += fmt.Sprintf("\nthe pods of backend %s are unknown: %s", s.Backend, s.Error)
	}
	return errors.New(text)
}

func printPlace(out *Screen, p *Place, now time.Time) {
	pod := strings.TrimPrefix(p.Pod.Namespace+"/"+p.Pod.Name, "/")
	what, id, native, st, made := "pod "+pod, p.Pod.ID, p.Pod.NativeID, p.Pod.State, p.Pod.Created
	if c := p.Container; c != nil {
		what = fmt.Sprintf("container %s of pod %s", c.Name, pod)
		id, native, st, made = c.ID, c.NativeID, c.State, c.Created
	}
	out.Paint(Bold, 0, "%s is on %s", what, OnNode(p.Backend, p.Node))
	line := func(name, text string) {
		if text != "" {
			out.Say(2, "%-13s %s", name, text)
		}
	}
	if p.Pod.FromCache {
		st += " when last known: the backend does not answer"
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
