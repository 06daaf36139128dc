package why

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// Of each of these nodes, on which nothing is wrong, why said that something was (issue 42).
func TestAHealthyNodeIsLeftInPeace(t *testing.T) {
	const clientEnded = "the client ended the call"
	underWay := func(c *call) *call {
		c.ended, c.took = false, at(600).Sub(c.began)
		c.legs[0].ended, c.legs[0].took = false, c.took
		return c
	}
	late := func(method string, second int, by time.Duration) *call {
		c := made(method, "primary", second, by+time.Second, codes.OK, "")
		c.legs[0].after, c.legs[0].took = by, time.Second
		return c
	}
	canceled := func(method string) *call {
		c := made(method, "primary", 100, 3*time.Second, codes.Canceled, clientEnded)
		c.timeout = 4 * time.Minute
		return c
	}
	image := func(c *call, image string) *call {
		c.about.Image = image
		return c
	}
	missing := func(second int, name string) *call {
		c := image(made("ImageStatus", "primary", second, time.Millisecond, codes.OK, ""), name)
		c.lacks = true
		return c
	}
	// lists of two runtimes, of which one removes much while its disk is slow
	removes := func() (all []*call) {
		for second := 480; second < 600; second += 5 {
			c := made("ListContainers", "primary", second, time.Millisecond, codes.OK, "")
			c.legs = append(c.legs, leg{backend: "kata.io", took: time.Millisecond, ended: true})
			all = append(all, c)
		}
		for i, method := range []string{"RemoveContainer", "RemovePodSandbox", "RemoveImage"} {
			all = append(all, made(method, "kata.io", 500+i, 15*time.Second, codes.OK, ""))
		}
		return all
	}
	agent := func() (all []*call) { // it asks for 60 containers every ten seconds
		for i := range 600 {
			c := made("ContainerStats", "primary", 100+i/6, time.Millisecond, codes.OK, "")
			c.from = "agent"
			all = append(all, c)
		}
		return append(all, made("Status", "primary", 100, time.Millisecond, codes.OK, ""))
	}
	streams := func() (all []*call) {
		for second := range 40 {
			all = append(all, made("Status", "primary", 500+second, time.Millisecond, codes.OK, ""))
		}
		return append(all, made("StreamImages", "primary", 540, 25*time.Second, codes.OK, ""), made("Status", "primary", 566, time.Millisecond, codes.OK, ""),
			underWay(made("StreamImages", "primary", 567, 0, codes.OK, "")))
	}
	for name, calls := range map[string][]*call{
		"kubelet is restarted while it makes a sandbox":      {canceled("RunPodSandbox"), made("RunPodSandbox", "primary", 110, time.Second, codes.OK, "")},
		"a pod is deleted while its sandbox is made":         {canceled("RunPodSandbox")},
		"a pod is deleted while its container is made":       {canceled("CreateContainer")},
		"a disk is slow, and the runtime answers others":     removes(),
		"many pods start, and a list takes long once":        {made("ListContainers", "primary", 100, 3500*time.Millisecond, codes.OK, "")},
		"lists take long now and then, on a node that works": {made("ListContainers", "primary", 100, 4*time.Second, codes.OK, ""), made("ListContainers", "primary", 200, 4*time.Second, codes.OK, ""), made("ListContainers", "primary", 400, 4*time.Second, codes.OK, "")},
		"an image is pulled, and the next one waits":         {image(underWay(made("PullImage", "primary", 570, 0, codes.OK, "")), "r.test/large:1"), missing(575, "r.test/small:1")},
		"criproxy has no time, and no plugin is asked":       {late("RunPodSandbox", 100, 1500*time.Millisecond), late("ListContainers", 101, time.Second)},
		"an agent asks for the statistics of each container": agent(),
		"a list is streamed":                                 streams(),
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{now: at(600), calls: calls}
			slices.SortStableFunc(v.calls, func(a, b *call) int { return a.began.Compare(b.began) })
			v.hung = v.hangsOf()
			for _, rule := range rules {
				for _, f := range rule.find(v) {
					assert.Fail(t, "it is accused", "%s: %s", rule.Name, f.Text)
				}
			}
		})
	}
}

// A large image took minutes, and why said that its registry was in trouble. It blamed that pull for an image whose own pull had
// failed, and which kubelet would try again later (issue 42).
func TestAPullUnderWayIsAFaultOnlyIfAnotherImageWaits(t *testing.T) {
	pull := made("PullImage", "primary", 400, 200*time.Second, codes.OK, "")
	pull.ended, pull.legs[0].ended, pull.about.Image = false, false, "r.test/large:1"
	missing := made("ImageStatus", "primary", 420, time.Millisecond, codes.OK, "")
	missing.lacks, missing.about.Image = true, "r.test/small:1"
	failed := made("PullImage", "primary", 390, time.Millisecond, codes.NotFound, "not found")
	failed.about.Image = "r.test/small:1"
	for name, one := range map[string]struct {
		calls []*call
		level Level
	}{
		"alone":                               {[]*call{pull}, Note},
		"another image is needed":             {[]*call{pull, missing}, Warning},
		"another image is in its own trouble": {[]*call{failed, pull, missing}, Note},
	} {
		found := pulls.find(&view{now: at(600), calls: one.calls})
		require.Len(t, found, 1, name)
		assert.Equal(t, one.level, found[0].Level, name)
		assert.Contains(t, found[0].Cause, "or the image is very large")
	}
}

// Of a pod whose image waited for another pod's pull, why said that nothing was wrong: no call says which pod needs an image.
func TestAPullThatHangsConcernsThePodThatWaitsForAnotherImage(t *testing.T) {
	of := func(pod, method string, second int, took time.Duration) *call {
		c := made(method, "primary", second, took, codes.OK, "")
		c.about.Pod, c.about.Image = pod, ""
		return c
	}
	pull := of("large", "PullImage", 400, 200*time.Second)
	pull.ended, pull.legs[0].ended, pull.about.Image = false, false, "r.test/large:1"
	missing := of("", "ImageStatus", 421, time.Millisecond)
	missing.about.Namespace, missing.lacks, missing.about.Image = "", true, "r.test/small:1"
	pods := func(more ...*call) []string {
		found := pulls.find(&view{now: at(600), calls: append([]*call{of("early", "RunPodSandbox", 390, time.Second), pull, of("small", "RunPodSandbox", 420, time.Second), missing}, more...)})
		require.Len(t, found, 1)
		return found[0].Pods
	}
	assert.Equal(t, []string{"shop/large", "shop/small"}, pods())
	assert.Equal(t, []string{"shop/large"}, pods(of("small", "CreateContainer", 430, time.Second)), "it has its image")
	assert.Equal(t, []string{"shop/large"}, pods(of("small", "StopPodSandbox", 430, time.Second)))
}

// A runtime that said in other words why it was not ready did so twice at once.
func TestARuntimeIsNotReadyForItsLatestReason(t *testing.T) {
	says := func(second int, said string) *call {
		c := made("Status", "primary", second, time.Millisecond, codes.OK, "")
		c.said = said
		return c
	}
	v := &view{now: at(60), calls: []*call{says(0, "NetworkReady=false: no file"), says(5, "NetworkReady=false: the file is wrong")}}
	require.Len(t, v.notReady(), 1)
	assert.Equal(t, "primary reports NetworkReady=false: the file is wrong", v.notReady()[0].Text)
	v.calls = append(v.calls, says(10, ""))
	assert.Equal(t, "primary reported NetworkReady=false: the file is wrong, from 09:00:00.000; it is ready since 09:00:10.000", v.notReady()[0].Text)
}

// One call an hour later hid a flood: it came to few calls a second.
func TestAFloodIsFoundAlthoughItsClientCallsOnceMore(t *testing.T) {
	v := &view{now: at(3600), calls: []*call{made("Status", "primary", 0, time.Millisecond, codes.OK, "")}}
	for i := range 600 {
		v.calls = append(v.calls, &call{method: "ListContainers", from: "crictl", began: at(i / 20), ended: true})
	}
	v.calls = append(v.calls, &call{method: "ListContainers", from: "crictl", began: at(3500), ended: true})
	found := floods(v)
	require.Len(t, found, 1)
	assert.Equal(t, fmt.Sprintf("crictl made 600 calls in 29s, %d in a second, mostly ListContainers; kubelet made 1 in the same time", 21), found[0].Text)
	assert.True(t, found[0].Over)
}
