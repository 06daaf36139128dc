package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Of a runtime that was gone, why also said that it went on with a sandbox, that a registry hung, and that a shim stood still
// (issue 42).
func TestACallHasOneCause(t *testing.T) {
	const hangs, refused = "accepts connections, and has answered nothing for 10s", "connection refused"
	waits := func(method string) func() []*call { // for two minutes, until now
		return func() []*call {
			c := made(method, "primary", 480, 2*time.Minute, codes.OK, "")
			c.ended, c.legs[0].ended, c.asked = false, false, 10*time.Second
			return []*call{c}
		}
	}
	leaves := func(method string, took time.Duration) func() []*call { // kubelet gives up, twice
		return func() (all []*call) {
			for _, second := range []int{560, 580} {
				c := made(method, "primary", second, took, codes.DeadlineExceeded, "context deadline exceeded")
				c.asked = time.Second
				all = append(all, c)
			}
			return all
		}
	}
	fails := func(method string) func() []*call { // criproxy says so
		return func() (all []*call) {
			for second := 540; second < 600; second += 15 {
				c := made(method, "primary", second, time.Millisecond, codes.Unavailable, "criproxy: backend primary is gone since 09:07:00: connection refused")
				c.legs = nil
				all = append(all, c)
			}
			return all
		}
	}
	change := func(second int, backend, what, was, why string) *capture.Change {
		return &capture.Change{Time: at(second), Backend: backend, What: what, Was: was, Why: why}
	}
	conditions := map[string][]*capture.Change{
		"it is gone":            {change(420, "primary", capture.Gone, capture.Up, refused)},
		"it hangs":              {change(430, "primary", capture.Gone, capture.Up, hangs)},
		"it was slow before":    {change(420, "primary", capture.Slow, capture.Up, ""), change(430, "primary", capture.Gone, capture.Slow, hangs)},
		"nothing is known":      nil,
		"it is slow":            {change(420, "primary", capture.Slow, capture.Up, "has not answered Status within 2s")},
		"another one is gone":   {change(420, "kata.io", capture.Gone, capture.Up, refused)},
		"it was gone long ago":  {change(20, "primary", capture.Gone, capture.Up, refused), change(50, "primary", capture.Up, capture.Gone, "")},
		"it was restarted then": {change(590, "primary", capture.Restarted, "", "process 8 serves it now, process 7 did before (containerd)")},
	}
	away := map[string]bool{"it is gone": true, "it hangs": true, "it was slow before": true}
	for name, one := range map[string]struct {
		calls func() []*call
		never bool // whatever its condition is
	}{
		"a pull waits":            {calls: waits("PullImage")},
		"a sandbox waits":         {calls: waits("RunPodSandbox")},
		"a container waits":       {calls: waits("CreateContainer")},
		"a stop waits":            {calls: waits("StopContainer")},
		"the end of a pod waits":  {calls: waits("StopPodSandbox")},
		"a list waits":            {calls: waits("ListContainers")},
		"sandboxes are given up":  {calls: leaves("RunPodSandbox", 10*time.Second)},
		"containers are given up": {calls: leaves("CreateContainer", 10*time.Second)},
		"probes are given up":     {calls: leaves("ExecSync", 2*time.Second)},
		"statuses are given up":   {calls: leaves("ContainerStatus", 10*time.Second)},
		"pulls fail":              {calls: fails("PullImage"), never: true},
		"ends of a pod fail":      {calls: fails("StopPodSandbox"), never: true},
		"removals fail":           {calls: fails("RemovePodSandbox"), never: true},
	} {
		for condition, changes := range conditions {
			t.Run(name+", "+condition, func(t *testing.T) {
				v := &view{now: at(600), calls: one.calls(), changes: changes}
				v.hung, v.down = v.hangsOf(), v.outagesBy()
				var others []string
				for _, r := range rules {
					if r == &runtimeChanged {
						continue
					}
					for _, f := range r.find(v) {
						others = append(others, f.Text)
					}
				}
				if one.never || away[condition] {
					assert.Empty(t, others)
				} else {
					assert.Len(t, others, 1)
				}
			})
		}
	}
}

// A runtime without CRI is gone, and criproxy quotes why.
func TestAMisfitIsToldBesideTheOutage(t *testing.T) {
	c := made("Version", "primary", 1, 0, codes.Unavailable, "criproxy: backend primary is gone since 09:00:00: answers Version with Unimplemented: unknown service runtime.v1.RuntimeService")
	c.legs = nil
	assert.Len(t, (&view{now: at(60), calls: []*call{c}}).refused(), 1)
}

// kubelet gives up evented PLEG also because a runtime was gone: it stays so.
func TestKubeletGivesUpEventsForAnyReason(t *testing.T) {
	v := &view{now: at(60)}
	for second := range eventTries {
		v.calls = append(v.calls, made("GetContainerEvents", "primary", second, 0, codes.Unavailable, "criproxy: backend primary is gone since 09:00:00: connection refused"))
	}
	assert.Len(t, v.noEvents(), 1)
}

// A runtime cannot report anything while it is gone, and a finding said that it does.
func TestARuntimeThatIsGoneReportsNothing(t *testing.T) {
	c := made("Status", "primary", 1, 0, codes.OK, "")
	c.said = "NetworkReady=false"
	v := &view{now: at(60), calls: []*call{c}}
	assert.Equal(t, "primary reports NetworkReady=false", v.notReady()[0].Text)
	v.changes = []*capture.Change{{Time: at(30), Backend: "primary", What: capture.Gone, Was: capture.Up}}
	v.down = v.outagesBy()
	f := v.notReady()[0]
	assert.Equal(t, "primary reported NetworkReady=false; it is gone now", f.Text)
	assert.False(t, f.Lasts())
}

// A pod that had begun after an outage was told of it, as was one that had ended before (issue 42).
func TestAnOutageConcernsThePodsThatWereThere(t *testing.T) {
	ask := func(method string, second int) *call {
		c := made(method, "primary", second, 0, codes.OK, "")
		c.about.IDs = []string{"7f"}
		return c
	}
	outage := Finding{Backends: []string{"primary"}, Since: at(20), Last: at(30), Over: true}
	goesOn := Finding{Backends: []string{"primary"}, Since: at(20), Last: at(60)}
	for name, one := range map[string]struct {
		calls []*call
		whole time.Time
		f     Finding
		want  bool
	}{
		"it began before":               {calls: []*call{ask("RunPodSandbox", 10)}, f: outage, want: true},
		"it began meanwhile":            {calls: []*call{ask("RunPodSandbox", 25)}, f: outage, want: true},
		"it began at its end":           {calls: []*call{ask("RunPodSandbox", 40)}, f: outage, want: true}, // kubelet had waited for it
		"it began afterwards":           {calls: []*call{ask("RunPodSandbox", 50)}, f: outage},
		"it was made anew":              {calls: []*call{ask("StopPodSandbox", 39), ask("RunPodSandbox", 40)}, f: outage, want: true},
		"earlier calls are missing":     {calls: []*call{ask("RunPodSandbox", 40)}, whole: at(50), f: outage, want: true},
		"the outage goes on":            {calls: []*call{ask("RunPodSandbox", 40)}, f: goesOn, want: true},
		"it ended before":               {calls: []*call{ask("StartContainer", 5), ask("StopPodSandbox", 10)}, f: goesOn},
		"it ended before, and is again": {calls: []*call{ask("StopPodSandbox", 10), ask("RunPodSandbox", 11)}, f: goesOn, want: true},
		"it ended meanwhile":            {calls: []*call{ask("StartContainer", 5), ask("StopPodSandbox", 25)}, f: goesOn, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{now: at(60), calls: one.calls, whole: one.whole}
			assert.Equal(t, one.want, v.concerns(&one.f, "web"))
		})
	}
}

// why said of an outage that criproxy ran, beside a finding that it did not.
func TestWhatAFindingIsNotFitsTheOthers(t *testing.T) {
	v := &view{now: at(60), changes: []*capture.Change{{Time: at(30), Backend: "primary", What: capture.Gone, Was: capture.Up}}}
	assert.Equal(t, runtimeChanged.Not, runtimeChanged.complete(v.outages()[0]).Not)
	v.changes = append(v.changes, &capture.Change{Time: at(50), Since: at(40), What: capture.StoodStill})
	assert.Contains(t, runtimeChanged.complete(v.outages()[0]).Not, "criproxy itself stood still")

	v = &view{now: at(4)}
	for second := range 3 {
		c := made("StartContainer", "primary", second, 0, codes.Unknown, "no")
		v.calls = append(v.calls, c)
	}
	first := func() Finding {
		found := repeated.find(v)
		require.Len(t, found, 1)
		return repeated.complete(found[0])
	}
	assert.Equal(t, "a deadline: the runtime has answered", first().Not)
	for _, c := range v.calls {
		c.legs = nil
	}
	v.calls = append(v.calls, made("Status", "primary", 3, 0, codes.OK, ""))
	assert.Equal(t, notAsked, first().Not)
}
