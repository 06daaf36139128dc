package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// PodFilter selects pods.
type PodFilter struct {
	Namespace string // patterns; empty for all
	Backend   string // patterns; empty for all

	// None is called before the answer is shown if no pod is selected. If it fails, nothing is shown. Optional.
	None func() error
}

// Pods shows the pods of all backends that the filter selects. It returns the backends whose pods are unknown.
func Pods(ctx context.Context, q Query, f PodFilter) ([]admin.Silent, error) {
	answers := read[admin.Pods](ctx, q, "pods")
	if err := answers[0].Err; err != nil && q.Nodes == nil {
		return nil, err
	}
	pods := admin.Pods{Pods: []admin.Pod{}}
	for _, a := range answers {
		if a.Value == nil {
			pods.Unanswered = append(pods.Unanswered, admin.SilentNode{Node: a.Name, Error: a.Err.Error()})
			continue
		}
		for _, p := range a.Value.Pods {
			p.Node = a.Name
			pods.Pods = append(pods.Pods, p)
		}
		for _, s := range a.Value.Silent {
			s.Node = a.Name
			pods.Silent = append(pods.Silent, s)
		}
	}
	fits := func(patterns, s string) bool { return patterns == "" || calls.Matches(patterns, s) }
	all := len(pods.Pods)
	pods.Pods = slices.DeleteFunc(pods.Pods, func(p admin.Pod) bool { return !fits(f.Namespace, p.Namespace) || !fits(f.Backend, p.Backend) })
	pods.Silent = slices.DeleteFunc(pods.Silent, func(s admin.Silent) bool { return !fits(f.Backend, s.Backend) })
	if len(pods.Pods) == 0 && f.None != nil {
		if err := f.None(); err != nil {
			return nil, err
		}
	}
	var err error
	if !q.People() {
		err = Encode(q.Out, q.Format, pods)
	} else if all > 0 || len(pods.Silent)+len(pods.Unanswered) == 0 { // otherwise there may be pods
		printPods(q.Screen, pods.Pods, all, q.Format == Wide, time.Now())
	}
	return pods.Silent, errors.Join(err, Finish(q, answers))
}

// printPods shows pods, which a filter has selected from all, to people.
func printPods(out *Screen, pods []admin.Pod, all int, wide bool, now time.Time) {
	if len(pods) == 0 {
		if all > 0 {
			out.Say(0, "None of %s matches.", capture.Count(all, "pod"))
		} else {
			out.Say(0, "No pods.")
		}
		return
	}
	nodes := slices.ContainsFunc(pods, func(p admin.Pod) bool { return p.Node != "" })
	fromCache := map[string]bool{}
	var table Table
	for _, p := range pods {
		if p.FromCache {
			p.State += "?"
			fromCache[OnNode(p.Backend, p.Node)] = true
		}
		running := 0
		var images []string
		for _, c := range p.Containers {
			if c.State == "running" {
				running++
			}
			images = append(images, c.Image)
		}
		row := []string{"NAMESPACE", OrDash(p.Namespace), "POD", OrDash(p.Name), "BACKEND", p.Backend, "STATE", p.State,
			"SINCE", since(now, p.Created), "CONTAINERS", fmt.Sprintf("%d/%d", running, len(p.Containers))}
		if nodes {
			row = append([]string{"NODE", p.Node}, row...)
		}
		if wide {
			slices.Sort(images)
			row = append(row, "ID", p.ID, "UID", p.UID, "HANDLER", OrDash(p.Handler), "RUNTIME'S ID", p.NativeID, "IMAGES", strings.Join(slices.Compact(images), " "))
		} else {
			row = append(row, "ID", calls.ShortID(p.ID))
		}
		table.Row(row...)
	}
	out.Table(&table)
	for _, name := range slices.Sorted(maps.Keys(fromCache)) {
		out.Paint(Yellow, 0, "%s does not answer: a ? marks its pods, which are shown as they were last known.", name)
	}
}

// since is ago, or a dash if t is unknown.
func since(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return ago(now, t)
}

// OnNode adds the node to the name of a backend, if there are several nodes.
func OnNode(backend, node string) string {
	if node == "" {
		return backend
	}
	return backend + " of " + node
}
