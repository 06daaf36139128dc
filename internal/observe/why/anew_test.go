package why

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// of is made for a sandbox.
func of(id, method string, second int, more ...string) *call {
	c := made(method, "primary", second, time.Second, codes.OK, "")
	c.about.IDs = []string{id}
	for _, one := range more {
		switch one {
		case "crictl":
			c.from, c.pid = one, 7
		case "app":
			c.about.Container = one
		case "FAILED":
			c.code = codes.Unknown
		default:
			c.said = one
		}
	}
	return c
}

const ended = "SANDBOX_NOTREADY"

func TestWhatAnotherClientStoppedIsMadeAnew(t *testing.T) {
	run, stop, again := of("a", "RunPodSandbox", 0), of("a", "StopPodSandbox", 100, "crictl"), of("b", "RunPodSandbox", 104)
	clean, seen := of("a", "StopPodSandbox", 103), of("a", "PodSandboxStatus", 102, ended)
	v := &view{now: at(200), calls: []*call{run, stop, seen, clean, again}}
	found := madeAnew.find(v)
	require.Len(t, found, 1, "the sandbox has not ended by itself")
	assert.Equal(t, "crictl, not kubelet, stopped the sandbox of shop/web on primary at 09:01:40.000; kubelet made it anew at 09:01:44.000", found[0].Text)
	assert.Contains(t, found[0].Cure, "crictl on this node (process 7)")
	assert.True(t, found[0].Over)

	v.calls = []*call{run, stop, again, of("b", "StopPodSandbox", 120, "crictl"), of("c", "RunPodSandbox", 125)}
	found = madeAnew.find(v)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "on primary twice, the last time at 09:02:00.000; kubelet made it anew at 09:02:05.000")

	v.calls = []*call{run, of("x", "StopContainer", 100, "crictl", "app"), of("y", "CreateContainer", 250, "app")}
	found = madeAnew.find(v)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "crictl, not kubelet, stopped shop/web/app on primary at 09:01:40.000; kubelet made it anew at 09:04:10.000")

	for name, calls := range map[string][]*call{
		"kubelet had stopped it":                {run, of("a", "StopPodSandbox", 50), stop, again},
		"kubelet stopped it":                    {run, of("a", "StopPodSandbox", 100), again},
		"it was not stopped":                    {run, of("a", "StopPodSandbox", 100, "crictl", "FAILED"), again},
		"kubelet makes no other":                {run, stop, clean},
		"the pod was made again much later":     {run, stop, of("b", "RunPodSandbox", 300)},
		"another container began":               {run, of("x", "StopContainer", 100, "crictl", "app"), of("y", "CreateContainer", 101)},
		"the client made the sandboxes as well": {of("a", "RunPodSandbox", 0, "crictl"), stop, of("b", "RunPodSandbox", 104, "crictl")},
	} {
		assert.Empty(t, madeAnew.find(&view{now: at(400), calls: calls}), name)
	}
}

func TestASandboxThatEndedByItselfIsMadeAnew(t *testing.T) {
	run, seen, clean, again := of("a", "RunPodSandbox", 0), of("a", "PodSandboxStatus", 100, ended), of("a", "StopPodSandbox", 101), of("b", "RunPodSandbox", 102)
	all := []*call{run, seen, of("a", "PodSandboxStatus", 100, ended), clean, again}
	found := madeAnew.find(&view{now: at(200), calls: all})
	require.Len(t, found, 1)
	assert.Equal(t, "the sandbox of shop/web on primary had ended by 09:01:41.000, and no client had stopped it; kubelet made it anew at 09:01:42.000", found[0].Text)
	assert.NotEmpty(t, found[0].Cause)
	assert.True(t, found[0].Over)
	assert.Len(t, madeAnew.find(&view{now: at(200), begin: at(30), calls: all[1:]}), 1, "its beginning is long ago")

	lost := []*call{run, of("a", "PodSandboxStatus", 100, noAddress), clean, again}
	assert.Contains(t, madeAnew.find(&view{now: at(200), calls: lost})[0].Text, "had lost its address by 09:01:41.000, and no client had stopped it")

	loop := slices.Clone(all)
	for i, second := range []int{110, 118} {
		id, next := string(rune('b'+i)), string(rune('c'+i))
		loop = append(loop, of(id, "PodSandboxStatus", second, ended), of(id, "StopPodSandbox", second+1), of(next, "RunPodSandbox", second+2))
	}
	found = madeAnew.find(&view{now: at(130), calls: loop})
	require.Len(t, found, 1)
	assert.Equal(t, "the sandbox of shop/web on primary had ended 3 times, first by 09:01:41.000 and last by 09:01:59.000, and no client had stopped it; kubelet made it anew at 09:02:00.000", found[0].Text)
	assert.True(t, found[0].Lasts(), "it will end again")
	assert.True(t, madeAnew.find(&view{now: at(134), calls: loop})[0].Over, "the next one would have come")

	for name, v := range map[string]*view{
		"it may have been stopped before":        {begin: at(50), calls: all[1:]},
		"it may have been stopped and forgotten": {whole: at(50), calls: all[1:]},
		"events are missing":                     {pauses: []time.Time{at(70)}, calls: all},
		"a client was stopping it":               {calls: slices.Insert(slices.Clone(all), 1, of("a", "StopPodSandbox", 99, "crictl", "FAILED"))},
		"a client stopped it while it was asked": {calls: slices.Insert(slices.Clone(all), 2, of("a", "StopPodSandbox", 100, "crictl", "FAILED"))},
		"the runtime had failed to make it":      {calls: []*call{of("", "RunPodSandbox", 88, "FAILED"), seen, clean, again}},
		"the pod has ended, as a job does":       {calls: []*call{run, seen, clean}},
		"the pod was made again much later":      {calls: []*call{run, seen, clean, of("b", "RunPodSandbox", 150)}},
		"it is ready":                            {calls: []*call{run, of("a", "PodSandboxStatus", 100), clean, again}},
	} {
		v.now = at(200)
		assert.Empty(t, madeAnew.find(v), name)
	}
}
