package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// listed returns lists of kubelet, one a second, before a second.
func listed(until int) (all []*call) {
	for second := range until {
		all = append(all, made("ListPodSandbox", "primary", second, time.Millisecond, codes.OK, ""))
	}
	return all
}

// why accused kubelet, and was certain, of a time in which criproxy itself did not run (issue 42).
func TestKubeletIsNotAccusedOfATimeInWhichCriproxyDidNotRun(t *testing.T) {
	v := &view{now: at(40), calls: append(listed(21), made("ListContainers", "primary", 20, 10*time.Second, codes.OK, ""), made("ListPodSandbox", "primary", 41, time.Millisecond, codes.OK, ""))}
	require.Len(t, gaps(v), 1)
	require.Len(t, plegSlow(v), 1)
	assert.Empty(t, v.standstills())
	v.changes = []*capture.Change{{Time: at(40), Since: at(20), What: capture.StoodStill}}
	assert.Empty(t, gaps(v))
	assert.Empty(t, plegSlow(v))
	found := kubeletGap.find(v)
	require.Len(t, found, 1)
	assert.Equal(t, "criproxy itself stood still for 20s, from 09:00:20.000 to 09:00:40.000: clients waited for it, and for no runtime", found[0].Text)
	assert.False(t, found[0].Lasts())
	v.changes = append(v.changes, &capture.Change{Time: at(59), Since: at(54), What: capture.StoodStill})
	assert.Contains(t, kubeletGap.find(v)[0].Text, "stood still twice, for 25s in all")
}

// Of a kubelet that had been dead for minutes, why said nothing (issue 42).
func TestAKubeletThatMakesNoCallNowIsAFault(t *testing.T) {
	v := &view{now: at(49), calls: listed(20)}
	assert.Empty(t, gaps(v))
	v.now = at(50)
	found := gaps(v)
	require.Len(t, found, 1)
	assert.Equal(t, "kubelet has made no call for 31s, since 09:00:19.001, and waits for no answer", found[0].Text)
	assert.True(t, found[0].Lasts())
	waits := made("RunPodSandbox", "primary", 19, 31*time.Second, codes.OK, "")
	waits.ended = false
	for name, other := range map[string]*view{
		"it waits":             {now: v.now, calls: append(listed(20), waits)},
		"it makes few calls":   {now: v.now, calls: listed(5)},
		"events are missing":   {now: v.now, calls: v.calls, pauses: []time.Time{at(30)}},
		"criproxy did not run": {now: v.now, calls: v.calls, changes: []*capture.Change{{Time: at(50), Since: at(21), What: capture.StoodStill}}},
	} {
		assert.Empty(t, gaps(other), name)
	}
}
