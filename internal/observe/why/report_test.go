package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// why POD of a pod that was well said that another runtime was gone (issue 42).
func TestWhatConcernsAPodIsAboutItOrItsRuntime(t *testing.T) {
	status := func(name, runtime string) *call {
		return &call{method: "ContainerStatus", from: "kubelet", began: time.Unix(1, 0), ended: true, about: calls.About{Namespace: "shop", Pod: name}, legs: []leg{{backend: runtime, ended: true}}}
	}
	all := &call{method: "ListContainers", from: "kubelet", began: time.Unix(2, 0), ended: true, legs: []leg{{backend: "primary", ended: true}, {backend: "kata.io", ended: true}}}
	v := &view{calls: []*call{status("web", "primary"), status("vm", "kata.io"), all}}
	for name, one := range map[string]struct {
		finding Finding
		pod     string
		want    bool
	}{
		"the pod":                     {Finding{Pods: []string{"shop/vm", "shop/web"}}, "web", true},
		"another pod":                 {Finding{Pods: []string{"shop/vm"}}, "web", false},
		"another pod of its runtime":  {Finding{Pods: []string{"shop/db"}, Backends: []string{"primary"}}, "web", false},
		"its runtime":                 {Finding{Backends: []string{"primary"}}, "web", true},
		"another runtime":             {Finding{Backends: []string{"kata.io"}}, "web", false},
		"both runtimes":               {Finding{Backends: []string{"kata.io", "primary"}}, "shop/vm", true},
		"the node":                    {Finding{}, "web", true},
		"a pod that no call is about": {Finding{Backends: []string{"kata.io"}}, "db", true},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, one.want, v.concerns(&one.finding, one.pod))
		})
	}
}

// why said that nothing is wrong, of an hour of which 52s were recorded (issue 42).
func TestAReportSaysHowFarItSees(t *testing.T) {
	const none, since8, since12 = "Nothing is wrong that the calls show.", "Nothing is wrong that the calls since 09:00:08 show.", "Nothing is wrong that the calls since 09:00:12 show."
	const some = "Of the time before, some are missing: those that failed, were slow or changed something are kept longest. A runtime that hung then, a flood of calls, or a kubelet that stood still may not show."
	for name, one := range map[string]struct {
		calls          []int // the seconds at which they are
		missed         int   // the second at which events are missing
		crashed        bool  // criproxy, and began again at second 12
		options        Options
		verdict, limit string
	}{
		"an hour was asked for":          {calls: []int{8, 9}, options: Options{Since: at(-3540), Now: at(60)}, verdict: since8, limit: "Of the last 1h, only the last 52s are recorded. Of the time before, only outages show."},
		"it was kept only in part":       {calls: []int{2, 9}, missed: 8, options: Options{Since: at(-3540), Now: at(60)}, verdict: since8, limit: "Of the last 1h, all calls of the last 52s are recorded. " + some},
		"a crash lost some":              {calls: []int{2, 13}, crashed: true, options: Options{Since: at(-540), Now: at(60)}, verdict: since12, limit: "Of the last 10m, all calls of the last 48s are recorded. " + some},
		"all of a file":                  {calls: []int{2, 9}, verdict: none},
		"a file that was kept in part":   {calls: []int{2, 9, 20}, missed: 8, verdict: since8, limit: "Of this recording of 18s, all calls of the last 12s are recorded. " + some},
		"what was asked for is all here": {calls: []int{2, 9, 20}, missed: 8, options: Options{Since: at(8), Now: at(60)}, verdict: none},
		"a pod":                          {calls: []int{8}, options: Options{Pod: "shop/web"}, verdict: "Nothing is wrong with shop/web that the calls show."},
		"no call":                        {verdict: "Nothing is known: there were no calls to look at."},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(codec.NewSchema(), nil)
			add := func(second int, ev capture.Event) {
				ev.Time, ev.Mono = at(second), time.Duration(second)*time.Second
				l.Add(&ev)
			}
			for i, second := range one.calls {
				if one.missed > 0 && i == 1 {
					add(one.missed, capture.Event{Kind: capture.Missed, Missed: 5})
				}
				for _, kind := range []capture.Kind{capture.Start, capture.End} {
					add(second, capture.Event{Kind: kind, Call: uint64(i + 1), Method: "/runtime.v1.RuntimeService/Version"})
				}
			}
			if one.crashed {
				l.AddChange(&capture.Change{Time: at(12), What: capture.Serving, Missing: at(10)})
			}
			seen := l.Report(one.options).Seen
			assert.Equal(t, one.limit, seen.Limit)
			assert.Equal(t, one.verdict, seen.Verdict())
			assert.Equal(t, one.options.Since, seen.Asked)
		})
	}
}

// Of a process that was started anew, the page left out the first call: it counted as one that the process before had left.
func TestTheFirstCallOfAnotherRecordingCounts(t *testing.T) {
	l := New(codec.NewSchema(), nil)
	for i, mono := range []time.Duration{time.Hour, time.Second} {
		for _, kind := range []capture.Kind{capture.Start, capture.End} {
			l.Add(&capture.Event{Kind: kind, Time: at(i), Mono: mono, Call: uint64(i + 1), Method: "/runtime.v1.RuntimeService/Version"})
		}
	}
	assert.Equal(t, 2, l.Report(Options{}).Seen.Calls)
}

// The name of a pod of a Deployment has a part that nobody remembers (a stranger).
func TestAPodMayBeNamedByAPartOfItsName(t *testing.T) {
	v := &view{}
	for _, name := range []string{"web-10", "web-7d9f-x2", "olive-node1", "db"} {
		c := made("RunPodSandbox", "primary", 1, time.Second, codes.OK, "")
		c.about.Pod = name
		v.calls = append(v.calls, c)
	}
	for pod, want := range map[string]string{
		"": "", "db": "db", "olive": "shop/olive-node1", "node1": "shop/olive-node1", "shop/olive": "shop/olive-node1", "7d9f": "shop/web-7d9f-x2",
		"web": "web", "web-1": "web-1", "oli": "oli", "cart": "cart",
	} {
		name, _ := v.named(pod)
		assert.Equal(t, want, name)
	}
	_, near := v.named("web")
	assert.Equal(t, ", but some are about shop/web-10 and shop/web-7d9f-x2", near)
	_, near = v.named("dc")
	assert.Contains(t, near, `"db"`)
}

// A pull that hung now stood below an outage that was over (a stranger).
func TestWhatGoesOnIsSaidFirst(t *testing.T) {
	var order []string
	for _, f := range Sort([]Finding{{About: "over", Level: Warning, Over: true}, {About: "note", Level: Note}, {About: "warning", Level: Warning}, {About: "error", Level: Error}}) {
		order = append(order, f.About)
	}
	assert.Equal(t, []string{"error", "warning", "note", "over"}, order)
}
