package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// A success of another runtime ended a trouble that lasted (issue 42).
func TestOnlyASuccessOfTheSameRuntimeEndsATrouble(t *testing.T) {
	const short, long = time.Millisecond, 4 * time.Second
	ok := func(method string) func(string, int) *call {
		return func(runtime string, second int) *call { return made(method, runtime, second, short, codes.OK, "") }
	}
	failing := func(method, message string) func(string, int) *call {
		return func(runtime string, second int) *call {
			return made(method, runtime, second, short, codes.Unknown, message)
		}
	}
	for name, one := range map[string]struct {
		find      func(*view) []Finding
		bad, good func(runtime string, second int) *call
	}{
		"a full disk":     {pulls.find, failing("PullImage", "no space left on device"), ok("PullImage")},
		"a cgroup driver": {(*view).refused, failing("CreateContainer", "expected cgroupsPath to be of format"), ok("CreateContainer")},
		"a reserved name": {sandboxReserved.find, failing("RunPodSandbox", "failed to reserve sandbox name: name is reserved for 7f"), ok("RunPodSandbox")},
		"a slow list": {plegSlow, func(runtime string, second int) *call {
			return made("ListContainers", runtime, second, hung, codes.OK, "")
		}, ok("ListContainers")},
		"a slow plugin": {(*view).slowPlugins, func(runtime string, second int) *call {
			c := made("RunPodSandbox", runtime, second, long, codes.OK, "")
			c.legs[0].after = long
			return c
		}, ok("RunPodSandbox")},
		"no network": {(*view).notReady, func(_ string, second int) *call {
			c := made("Status", "kata.io", second, short, codes.OK, "")
			c.legs = append(c.legs, leg{backend: "primary", ended: true, said: "NetworkReady=false"})
			return c
		}, ok("Status")},
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{calls: []*call{one.bad("primary", 0), one.bad("primary", 10), one.good("kata.io", 20)}}
			found := one.find(v)
			require.Len(t, found, 1)
			assert.Equal(t, []string{"primary"}, found[0].Backends)
			assert.False(t, found[0].Over)
			v.calls = append(v.calls, one.good("primary", 30))
			assert.True(t, one.find(v)[0].Over)
		})
	}
	failed := failing("StartContainer", "no")
	v := &view{calls: []*call{failed("primary", 0), failed("primary", 10), failed("primary", 20), ok("StartContainer")("kata.io", 30)}}
	require.Len(t, repeated.find(v), 1)
	assert.False(t, repeated.find(v)[0].Over)
}

// A pod that a full disk had kept from its start for minutes had nothing wrong once it ran.
func TestWhatFailedOftenIsToldWhenItHasSucceeded(t *testing.T) {
	v := &view{}
	for second := range 3 {
		v.calls = append(v.calls, made("RunPodSandbox", "primary", second, time.Millisecond, codes.Unknown, "write /x: no space left on device"))
	}
	v.calls = append(v.calls, made("RunPodSandbox", "primary", 30, time.Second, codes.OK, ""))
	found := repeated.find(v)
	require.Len(t, found, 1)
	assert.True(t, found[0].Over)
	assert.Regexp(t, "^shop/web did not start on primary: RunPodSandbox failed 3 times: there is no space left .*; it succeeded at 09:00:31.000$", found[0].Text)
}

// A call that criproxy refused reached no runtime.
func TestASuccessOfAnyRuntimeEndsARefusalByAPlugin(t *testing.T) {
	refused := &call{method: "CreateContainer", from: "kubelet", ended: true, code: codes.PermissionDenied, message: "criproxy: CreateContainer: refused at PreCreateContainer"}
	v := &view{calls: []*call{refused, {method: "CreateContainer", began: time.Unix(1, 0), ended: true, legs: []leg{{backend: "primary", ended: true}}}}}
	require.Len(t, v.refused(), 1)
	assert.True(t, v.refused()[0].Over)
}
