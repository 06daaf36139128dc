package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// What follows was missed on a third and a fourth set of nodes (issue 42).

func exec(second int, asked, took time.Duration, message string) *call {
	c := made("ExecSync", "primary", second, took, codes.OK, message)
	c.about.Container, c.about.IDs, c.asked = "app", []string{"7f"}, asked
	if message != "" {
		c.code = codes.Unknown
	}
	return c
}

func TestAProbeThatTheRuntimeRefusesIsNotSlow(t *testing.T) {
	const paused = `failed to create exec "7f": cannot exec in a paused state`
	v := &view{now: at(59)}
	for second := 1; second < 40; second += 10 {
		v.calls = append(v.calls, exec(second, time.Second, 2*time.Second, paused))
	}
	found := probes.find(v)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web/app: its exec probe is not run on primary, 4 times: the container is paused: "+paused, found[0].Text)
	assert.Equal(t, Error, found[0].Level)
	v.calls = append(v.calls, exec(45, time.Second, time.Millisecond, ""))
	found = probes.find(v)
	require.Len(t, found, 1)
	assert.True(t, found[0].Over)
	assert.Contains(t, found[0].Text, "its exec probe was not run on primary, 4 times")
	assert.Contains(t, found[0].Text, "; it runs again since 09:00:45.000")
	for name, calls := range map[string][]*call{
		"one probe is three tries":      {exec(1, time.Second, 0, paused), exec(1, time.Second, 0, paused), exec(1, time.Second, 0, paused)},
		"the container has ended":       {exec(1, time.Second, 0, "no running task"), exec(11, time.Second, 0, "no running task"), exec(21, time.Second, 0, "no running task")},
		"a person lacks a shell":        {person(exec(1, time.Second, 0, paused)), person(exec(11, time.Second, 0, paused)), person(exec(21, time.Second, 0, paused))},
		"it was refused twice in a day": {exec(1, time.Second, 0, paused), exec(21, time.Second, 0, paused)},
	} {
		assert.Empty(t, probes.find(&view{now: at(59), calls: calls}), name)
	}
}

func TestAnErrorOfAProbeThatNobodyKnowsIsQuoted(t *testing.T) {
	v := &view{now: at(59)}
	for second := 1; second < 40; second += 10 {
		v.calls = append(v.calls, exec(second, time.Second, 0, "the moon is full"))
	}
	assert.Equal(t, "shop/web/app: its exec probe is not run on primary, 4 times: the moon is full", probes.find(v)[0].Text)
}

func TestAStartThatTakesLong(t *testing.T) {
	start := made("StartContainer", "primary", 1, 40*time.Second, codes.OK, "")
	start.about.Container, start.ended = "app", false
	v := &view{now: at(41), calls: []*call{start}}
	found := v.slowStarts()
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web/app waits for its StartContainer, which has been under way for 40s on primary", found[0].Text)
	assert.Equal(t, Note, found[0].Level)
	start.took = time.Minute
	assert.True(t, v.slowStarts()[0].Lasts())
	start.ended = true
	assert.Equal(t, "shop/web/app waited for its StartContainer, which took 1m0s on primary", v.slowStarts()[0].Text)
	start.took = 20 * time.Second
	assert.Empty(t, v.slowStarts())
}

func person(c *call) *call {
	c.from = "crictl"
	return c
}

func TestAPostStartHookThatRunsForLong(t *testing.T) {
	start, hook := made("StartContainer", "primary", 1, time.Second, codes.OK, ""), exec(2, 0, 40*time.Second, "")
	start.about.Container, start.about.IDs, hook.ended = "app", hook.about.IDs, false
	v := &view{now: at(42), calls: []*call{start, hook}}
	found := slowStart.find(v)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web/app: its postStart hook has been running for 40s on primary, and kubelet waits for it", found[0].Text)
	assert.Equal(t, Note, found[0].Level, "some take their time")
	hook.took = 2 * time.Minute
	assert.True(t, slowStart.find(v)[0].Lasts())
	hook.ended = true
	assert.Equal(t, "shop/web/app: its postStart hook ran for 2m0s on primary", slowStart.find(v)[0].Text)
	assert.True(t, slowStart.find(v)[0].Over)
	hook.began = at(10)
	assert.Empty(t, slowStart.find(v), "a preStop hook may take the whole grace period")
	hook.began, hook.took = at(2), 20*time.Second
	assert.Empty(t, slowStart.find(v))
}

func TestAProcessThatCannotBeKilledIsSaidWhateverItsGracePeriod(t *testing.T) {
	stop := made("StopContainer", "primary", 1, 20*time.Second, codes.OK, "")
	stop.about.Container, stop.asked, stop.ended = "app", 2*time.Second, false
	v := &view{now: at(21), calls: []*call{stop}}
	found := v.stubborn(v.calls)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web/app has not ended 20s after its signal, although its grace period was 2s", found[0].Text)
	assert.True(t, found[0].Lasts())
	stop.ended = true
	found = v.stubborn(v.calls)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web/app ended only 20s after its signal, although its grace period was 2s", found[0].Text)
	assert.False(t, found[0].Lasts())
	stop.took = 15 * time.Second
	assert.Empty(t, v.stubborn(v.calls), "the node is busy")
}

// On a node with 24 specs of Kubernetes at once, each was blamed on a process that could not be killed (its node suite).
func TestManyContainersThatEndLateShowABusyNode(t *testing.T) {
	v := &view{now: at(60)}
	for _, name := range []string{"a", "b", "c"} {
		stop := made("StopContainer", "primary", 1, 20*time.Second, codes.OK, "")
		stop.about.Container, stop.asked = name, 2*time.Second
		v.calls = append(v.calls, stop)
	}
	v.calls[1].took = 25 * time.Second
	found := v.stubborn(v.calls)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web/b ended only 25s after its signal, although its grace period was 2s; 2 other containers as well", found[0].Text)
	assert.Equal(t, "the node is busy or primary slow", found[0].Cause)
	assert.False(t, found[0].Lasts())
	assert.Len(t, v.stubborn(v.calls[:2]), 2)

	v.calls = nil
	for _, name := range []string{"a", "b"} {
		start := made("StartContainer", "primary", 1, 40*time.Second, codes.OK, "")
		start.about.Container = name
		v.calls = append(v.calls, start)
	}
	assert.Equal(t, "the node is busy or primary slow: others started slowly, too", v.slowStarts()[0].Cause)
	v.calls[1].took = time.Second
	assert.Equal(t, "its shim, or runc below it, waits for something", v.slowStarts()[0].Cause)
}

func TestAnImageThatKubeletDoesNotPull(t *testing.T) {
	look := func(second int, lacks bool) *call {
		c := made("ImageStatus", "primary", second, time.Millisecond, codes.OK, "")
		c.about.Namespace, c.about.Pod, c.lacks = "", "", lacks
		return c
	}
	create := made("CreateContainer", "primary", 0, time.Millisecond, codes.OK, "")
	remove := person(look(5, false))
	remove.method = "RemoveImage"
	v := &view{now: at(50), calls: []*call{create, look(1, false), remove, look(10, true), look(25, true), look(45, true)}}
	found := v.neverPulled(nil)
	require.Len(t, found, 1)
	assert.Equal(t, "image r.test/app:1 is missing on primary for shop/web: kubelet looked for it 3 times since 09:00:10.000, and did not pull it; crictl had removed it at 09:00:05.000", found[0].Text)
	assert.Equal(t, Error, found[0].Level)
	v.now = at(660)
	assert.Contains(t, v.neverPulled(nil)[0].Text, "; kubelet has not tried since")
	v.calls = append(v.calls, look(48, false))
	assert.Contains(t, v.neverPulled(nil)[0].Text, "; it is there since 09:00:48.000 or before")

	pull := func(second int, image string, took time.Duration, code codes.Code) *call {
		c := made("PullImage", "primary", second, took, code, "")
		c.about.Image = image
		return c
	}
	missing := []*call{look(10, true), look(25, true), look(45, true)}
	for name, calls := range map[string][]*call{
		"several pods began at once":     {look(10, true), look(11, true), look(12, true)},
		"its pull failed, kubelet waits": append([]*call{pull(2, "r.test/app:1", time.Second, codes.Unknown)}, missing...),
		"kubelet waits for another pull": append([]*call{pull(2, "r.test/large:1", time.Minute, codes.OK)}, missing...),
		"it is there":                    {look(10, false), look(25, false), look(45, false)},
	} {
		v := &view{now: at(50), calls: calls}
		assert.Empty(t, v.neverPulled(v.of((*call).kubelet, "PullImage")), name)
	}
}
