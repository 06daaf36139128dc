package why

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// An error of a pod that had been deleted went on (issue 42).
func TestTroubleEndsWithThePod(t *testing.T) {
	ask := func(method, from, pod, id string, second int, code codes.Code) *call {
		c := made(method, "primary", second, 0, code, "")
		c.from, c.about.Pod, c.about.IDs = from, pod, []string{id}
		return c
	}
	kubelet := func(method, id string, second int) *call { return ask(method, "kubelet", "web", id, second, codes.OK) }
	for name, one := range map[string]struct {
		before, after []*call
		now           time.Time
		says          string
		sandbox       bool // it has none
	}{
		"nothing happens":                     {},
		"it is stopped":                       {after: []*call{kubelet("StopPodSandbox", "7f", 40), kubelet("RemovePodSandbox", "7f", 50)}, says: notTried + ": the pod ended at 09:00:40.000"},
		"somebody removes it":                 {after: []*call{ask("RemovePodSandbox", "crictl", "web", "7f", 40, codes.OK)}, says: notTried + ": the pod ended at 09:00:40.000"},
		"another pod is stopped":              {after: []*call{ask("StopPodSandbox", "kubelet", "db", "8a", 40, codes.OK)}},
		"it cannot be stopped":                {after: []*call{ask("StopPodSandbox", "kubelet", "web", "7f", 40, codes.Unknown)}},
		"it was stopped, and is made anew":    {after: []*call{kubelet("StopPodSandbox", "7f", 40), kubelet("RunPodSandbox", "8a", 41)}},
		"it was stopped before":               {before: []*call{kubelet("StopPodSandbox", "7f", 1)}},
		"an older sandbox is removed":         {before: []*call{kubelet("RunPodSandbox", "8a", 1)}, after: []*call{kubelet("RemovePodSandbox", "7f", 40)}},
		"so it is, of a pod made long ago":    {after: []*call{kubelet("RemovePodSandbox", "7f", 40), kubelet("PodSandboxStatus", "8a", 41)}},
		"kubelet tries again in five minutes": {now: at(5 * 60)},
		"kubelet tries no more":               {now: at(11 * 60), says: "; kubelet has not tried since"},
		"a sandbox that failed is stopped":    {now: at(55), after: []*call{kubelet("StopPodSandbox", "7f", 40)}, sandbox: true}, // and made anew
		"a sandbox is tried again soon":       {now: at(55), sandbox: true},
		"a sandbox is tried no more":          {now: at(65), says: "; kubelet has not tried since", sandbox: true}, // its pod was deleted
	} {
		t.Run(name, func(t *testing.T) {
			v, method := &view{now: one.now, calls: one.before}, "StartContainer"
			if one.sandbox {
				method = "RunPodSandbox"
			}
			for _, second := range []int{10, 20, 30} {
				v.calls = append(v.calls, ask(method, "kubelet", "web", "9b", second, codes.Unknown))
			}
			v.calls = append(v.calls, one.after...)
			found := repeated.find(v)
			require.Len(t, found, 1)
			f := &found[0]
			v.endWithPods(&repeated, f)
			assert.Equal(t, one.says != "", f.Over)
			assert.Equal(t, one.says == "", f.Level == Error)
			assert.Equal(t, map[bool]string{true: "goes on", false: "not tried since"}[one.says == ""], f.State(), "it never succeeded")
			assert.True(t, strings.HasSuffix(f.Text, "failed 3 times: "+one.says), f.Text)
		})
	}
}

// A pod that had ended was said to be stuck, as if it were now.
func TestWhatHasEndedIsSaidInThePast(t *testing.T) {
	ask := func(method string, second int, code codes.Code, answer string) *call {
		c := made(method, "primary", second, 0, code, answer)
		c.about.IDs = []string{"7f"}
		return c
	}
	const held = "failed to reserve sandbox name: name is reserved for 7f"
	makes := []*call{ask("RunPodSandbox", 1, codes.Unknown, held), ask("RunPodSandbox", 11, codes.Unknown, held)}
	ends := []*call{ask("StopContainer", 1, codes.Unknown, "no"), ask("StopContainer", 11, codes.Unknown, "no")}
	removed := ask("RemovePodSandbox", 20, codes.OK, "")
	now := at(12)
	first := func(r *Rule, all ...*call) string {
		v := &view{calls: all, now: now}
		f := r.find(v)[0]
		v.endWithPods(r, &f)
		return f.Text
	}
	assert.Contains(t, first(&sandboxReserved, makes...), "primary cannot make the sandbox")
	assert.Contains(t, first(&sandboxReserved, append(makes, removed)...), "primary cannot make the sandbox", "kubelet cleans up, and tries again")
	assert.Contains(t, first(&stuckTerminating, ends...), "shop/web cannot end on primary")
	assert.Contains(t, first(&stuckTerminating, append(ends, removed)...), "shop/web could not end on primary")
	now = at(12 * 60)
	for r, all := range map[*Rule][]*call{&sandboxReserved: makes, &stuckTerminating: ends} {
		assert.Contains(t, first(r, all...), " could not ", r.Name)
		assert.True(t, strings.HasSuffix(first(r, all...), notTried), r.Name)
	}
}
