package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// kubelet waits four minutes for a sandbox, of which why said nothing (issue 42).
func TestACallUnderWayForLongIsSaid(t *testing.T) {
	now := at(600)
	const long = 3*time.Minute + 40*time.Second
	waits := func(method string, took time.Duration) *call {
		c := made(method, "primary", 600-int(took.Seconds()), took, codes.OK, "")
		c.about.Container, c.ended, c.legs[0].ended = "app", false, false
		return c
	}
	failed := func(method, answer string) *call {
		c := made(method, "primary", 300, time.Millisecond, codes.Unknown, answer)
		c.about.Container = "app"
		return c
	}
	const reserved = "failed to reserve sandbox name: name is reserved for 7f"
	plugin := waits("RunPodSandbox", long)
	plugin.legs = nil
	stop := waits("StopContainer", long)
	stop.asked = 2 * time.Second
	for name, one := range map[string]struct {
		rule  *Rule
		calls []*call
		says  string
	}{
		"a sandbox":                             {&sandboxReserved, []*call{waits("RunPodSandbox", long)}, "shop/web/app waits for its RunPodSandbox, which has been under way for 3m40s on primary"},
		"no runtime was asked":                  {&sandboxReserved, []*call{waits("ListContainers", time.Second), plugin}, "has been under way for 3m40s in criproxy, which has not asked a runtime yet"},
		"a sandbox after two tries":             {&sandboxReserved, []*call{failed("RunPodSandbox", reserved), failed("RunPodSandbox", reserved), waits("RunPodSandbox", long)}, "2 retries failed because the name was reserved; another one has been under way for 3m40s"},
		"a container":                           {&containerReserved, []*call{waits("CreateContainer", long)}, "shop/web/app waits for its CreateContainer, which has been under way for 3m40s on primary"},
		"the end of a pod":                      {&stuckTerminating, []*call{waits("StopPodSandbox", long)}, "shop/web/app waits for its StopPodSandbox, which has been under way for 3m40s on primary"},
		"it failed before":                      {&stuckTerminating, []*call{failed("StopPodSandbox", "no"), failed("StopPodSandbox", "no"), waits("StopPodSandbox", long)}, "; a StopPodSandbox has been under way for 3m40s"},
		"kubelet gave up once, and tries again": {&stuckTerminating, []*call{made("StopPodSandbox", "primary", 440, 2*time.Minute, codes.DeadlineExceeded, "context deadline exceeded"), waits("StopPodSandbox", 40*time.Second)}, "shop/web cannot end on primary: StopPodSandbox failed once; the last answer was: context deadline exceeded"},
		"a short grace period":                  {&stuckTerminating, []*call{stop}, "shop/web/app has not ended 3m40s after its signal, although its grace period was 2s"},
		"a sandbox on a busy node":              {&sandboxReserved, []*call{waits("RunPodSandbox", 50*time.Second)}, ""},
		"a pod that ends on a busy node":        {&stuckTerminating, []*call{waits("StopPodSandbox", 20*time.Second)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := one.rule.find(&view{now: now, calls: one.calls})
			if one.says == "" {
				assert.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			assert.Contains(t, found[0].Text, one.says)
			assert.True(t, found[0].Lasts())
			assert.Contains(t, []time.Time{now, at(560)}, found[0].Last)
		})
	}
}

// Nothing was said of a CNI plugin that had held a pod for two minutes, once it had let it go.
func TestACallThatTookLongIsSaidAfterwards(t *testing.T) {
	stop := made("StopPodSandbox", "primary", 1, 70*time.Second, codes.OK, "")
	v := &view{now: at(100), calls: []*call{stop}}
	found := stuckTerminating.find(v)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web waited for its StopPodSandbox, which took 1m10s on primary", found[0].Text)
	assert.True(t, found[0].Over)
	stop.took = 40 * time.Second
	assert.Equal(t, Note, stuckTerminating.find(v)[0].Level, "some take their time")
	stop.method, stop.took = "RunPodSandbox", 70*time.Second
	assert.Equal(t, "shop/web waited for its RunPodSandbox, which took 1m10s on primary", sandboxReserved.find(v)[0].Text)
}
