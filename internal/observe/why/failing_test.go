package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

func TestAnyCallThatKeepsFailingIsSaid(t *testing.T) {
	const no = "failed to set resources: device or resource busy"
	fails := func(method string, code codes.Code, seconds ...int) (all []*call) {
		for _, second := range seconds {
			all = append(all, made(method, "primary", second, time.Second, code, no))
		}
		return all
	}
	v := &view{now: at(60), calls: fails("UpdateContainerResources", codes.Unknown, 10, 20, 40)}
	found := repeated.find(v)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web: UpdateContainerResources fails on primary, 3 times from 09:00:10.000 on: "+no+"; its CPU and memory stay as they were", found[0].Text)
	assert.True(t, found[0].Lasts())
	v.calls = append(v.calls, made("UpdateContainerResources", "primary", 50, time.Second, codes.OK, ""))
	assert.Equal(t, "shop/web: UpdateContainerResources failed on primary, 3 times from 09:00:10.000 on: "+no+"; its CPU and memory stay as they were; it succeeded at 09:00:51.000", repeated.find(v)[0].Text)
	for name, calls := range map[string][]*call{
		"for a short time":     fails("UpdateContainerResources", codes.Unknown, 10, 11, 12, 13),
		"twice":                fails("UpdateContainerResources", codes.Unknown, 10, 50),
		"it is not there":      fails("ContainerStatus", codes.NotFound, 10, 20, 50),
		"an older runtime":     fails("RuntimeConfig", codes.Unimplemented, 10, 20, 50),
		"probes have a rule":   fails("ExecSync", codes.Unknown, 10, 20, 50),
		"it succeeds at times": append(append(fails("ImageFsInfo", codes.Unknown, 10, 20), made("ImageFsInfo", "primary", 30, time.Second, codes.OK, "")), fails("ImageFsInfo", codes.Unknown, 40, 50)...),
	} {
		assert.Empty(t, repeated.find(&view{now: at(60), calls: calls}), name)
	}
}

func TestAnyCallThatDoesNotEndIsSaid(t *testing.T) {
	c := made("RemovePodSandbox", "primary", 1, 50*time.Second, codes.OK, "")
	c.ended = false
	v := &view{now: at(51), calls: []*call{c}}
	assert.Empty(t, repeated.find(v))
	c.took = time.Minute
	require.Len(t, repeated.find(v), 1)
	assert.Equal(t, "shop/web waits for its RemovePodSandbox, which has been under way for 1m0s on primary", repeated.find(v)[0].Text)
	c.method = "PullImage"
	assert.Empty(t, repeated.find(v), "it has a rule")
}

func TestAKubeletThatIsStartedAgainAndAgain(t *testing.T) {
	v := &view{now: at(44)}
	for i := range 4 {
		c := made("Version", "primary", 10*i, time.Second, codes.OK, "")
		c.pid = 100 + i
		v.calls = append(v.calls, c)
	}
	found := v.restarts()
	require.Len(t, found, 1)
	assert.Equal(t, "kubelet was started anew 3 times from 09:00:10.000 to 09:00:30.000", found[0].Text)
	assert.True(t, found[0].Lasts())
	v.now = at(46)
	assert.Equal(t, "kubelet was started anew 3 times from 09:00:10.000 to 09:00:30.000; the last one runs since then", v.restarts()[0].Text)
	first := made("Version", "primary", 35, time.Second, codes.OK, "")
	first.pid = 100
	assert.Empty(t, (&view{now: at(60), calls: append(v.calls, first)}).restarts(), "several run at once")
	assert.Empty(t, (&view{now: at(60), calls: v.calls[:3]}).restarts(), "two restarts are no loop")
}

func TestATimeWithoutCriproxyIsSaid(t *testing.T) {
	serving := func(second int) *capture.Change { return &capture.Change{Time: at(second), What: capture.Serving} }
	killed := serving(50)
	killed.Missing = at(20)
	for name, one := range map[string]struct {
		changes []*capture.Change
		want    string
	}{
		"it was stopped": {[]*capture.Change{serving(0), {Time: at(10), What: capture.Stopped}, serving(25)}, "criproxy did not run for 15s, from 09:00:10.000 to 09:00:25.000: it stopped, and clients could not call any runtime"},
		"it was killed":  {[]*capture.Change{serving(0), killed}, "criproxy did not run for 30s, from 09:00:20.000 to 09:00:50.000: it crashed or was killed, and clients could not call any runtime"},
		"a restart":      {[]*capture.Change{serving(0), {Time: at(10), What: capture.Stopped}, serving(12)}, ""},
		"a handover":     {[]*capture.Change{serving(0), {Time: at(10), What: capture.HandedOver}, {Time: at(10), What: capture.Stopped}, {Time: at(11), What: capture.HandedOver}, serving(60)}, ""},
	} {
		found := (&view{now: at(60), changes: one.changes}).criproxyOff()
		if one.want == "" {
			assert.Empty(t, found, name)
			continue
		}
		require.Len(t, found, 1, name)
		assert.Equal(t, one.want, found[0].Text)
	}
}

func TestWhatCriproxyNoticedOfItsConfigurationLasts(t *testing.T) {
	web := made("ContainerStatus", "kata.io", 1, time.Second, codes.OK, "")
	refused := &capture.Change{Time: at(10), What: capture.Refused, Why: "backends[0]: no socket"}
	down := &capture.Change{Time: at(10), What: capture.PluginDown, Plugin: "policy.json", Why: "connection refused"}
	removed := &capture.Change{Time: at(10), What: capture.Removed, Backend: "kata.io"}
	v := &view{now: at(60), calls: []*call{web}, changes: []*capture.Change{refused, down, removed}}
	var said []string
	for _, f := range v.ofCriproxy() {
		said = append(said, f.Text)
		assert.True(t, f.Lasts())
	}
	assert.Equal(t, []string{"criproxy refused a new configuration at 09:00:10.000, and goes on with the one before: backends[0]: no socket",
		"plugin policy.json is down since 09:00:10.000: connection refused",
		"kata.io is no longer in the configuration since 09:00:10.000, with shop/web; kubelet does not see what runs there"}, said)
	v.changes = append(v.changes, &capture.Change{Time: at(20), What: capture.Reloaded}, &capture.Change{Time: at(20), What: capture.PluginReady, Plugin: "policy.json"}, &capture.Change{Time: at(20), What: capture.Connecting, Backend: "kata.io"})
	assert.Empty(t, v.ofCriproxy())
	v.changes, v.calls = []*capture.Change{removed}, nil
	assert.Empty(t, v.ofCriproxy(), "it had no pods")
}
