package why

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// kubelet tries images every five minutes, or every ten seconds while the disk is too full.
func TestImagesThatStayAreToldTogether(t *testing.T) {
	remove := func(minute int, from, image string, code codes.Code, message string) *call {
		c := made("RemoveImage", "primary", 60*minute, 0, code, message)
		c.from, c.about = from, calls.About{Image: image}
		return c
	}
	used := "delete image: image used by 7f: image is in use by a container"
	var tries []*call
	for _, minute := range []int{0, 5, 10} {
		tries = append(tries, remove(minute, "kubelet", "aa", codes.Unknown, used), remove(minute, "kubelet", "bb", codes.Unknown, used))
	}
	v := &view{now: at(60 * 14), calls: tries}
	found := staying(v)
	require.Len(t, found, 1)
	assert.Equal(t, "image bb and 1 other image cannot be removed from primary: RemoveImage was tried 6 times, and the last answer was: "+used, found[0].Text)
	assert.Contains(t, found[0].Cause, "podman")
	assert.False(t, found[0].Over, "the next try comes after five minutes")

	named := made("ImageStatus", "primary", 1, 0, codes.OK, "")
	named.about = calls.About{Image: "r.test/app:1", IDs: []string{"bb"}}
	assert.Contains(t, staying(&view{now: v.now, calls: append(tries[:6:6], named)})[0].Text, "r.test/app:1 and 1 other image cannot", "an id is no name")

	v.now = at(60 * 21)
	assert.True(t, staying(v)[0].Over)
	assert.Contains(t, staying(v)[0].Text, "bb and 1 other image could not be removed")
	assert.Contains(t, staying(v)[0].Text, "; kubelet has not tried since")

	for name, more := range map[string][]*call{
		"kubelet has removed them": {remove(15, "kubelet", "aa", codes.OK, ""), remove(15, "kubelet", "bb", codes.OK, "")},
		"a person has":             {remove(15, "crictl", "aa", codes.OK, ""), remove(15, "crictl", "bb", codes.OK, "")},
	} {
		assert.Empty(t, staying(&view{now: at(60 * 16), calls: append(tries[:6:6], more...)}), name)
	}
	assert.Empty(t, staying(&view{now: at(60 * 14), calls: tries[:4]}), "it was tried twice")
	underWay := remove(15, "kubelet", "aa", codes.OK, "")
	underWay.ended = false
	assert.Len(t, staying(&view{now: at(60 * 16), calls: append(tries[:6:6], underWay)}), 1, "the next try changes nothing yet")
	gone := "criproxy: backend primary is gone since 09:00:01: connection refused"
	assert.Empty(t, staying(&view{now: at(60 * 14), calls: []*call{
		remove(0, "kubelet", "aa", codes.Unavailable, gone), remove(5, "kubelet", "aa", codes.Unavailable, gone), remove(10, "kubelet", "aa", codes.Unavailable, gone),
	}}), "the runtime was not asked")
}

// A pod may have several sandboxes of one name, of which kubelet removes the older ones.
func TestTheSandboxesOfAPodAreToldApart(t *testing.T) {
	remove := func(minute int, id string, code codes.Code) *call {
		c := made("RemovePodSandbox", "primary", 60*minute, 0, code, "")
		c.about.IDs = []string{id}
		return c
	}
	stays := []*call{remove(0, "aa", codes.Unknown), remove(1, "aa", codes.Unknown), remove(2, "aa", codes.Unknown), remove(3, "bb", codes.OK)}
	assert.Len(t, staying(&view{now: at(60 * 3), calls: stays}), 1, "another one was removed")
	late := staying(&view{now: at(60 * 4), calls: append(stays[:3:3], remove(3, "aa", codes.OK))})
	require.Len(t, late, 1)
	assert.Equal(t, "shop/web could not be removed from primary: RemovePodSandbox was tried 3 times, and the last answer was: ; it was removed at 09:03:00.000", late[0].Text)
	assert.True(t, late[0].Over)
	each := []*call{remove(0, "aa", codes.Unknown), remove(1, "bb", codes.Unknown), remove(2, "cc", codes.Unknown)}
	assert.Empty(t, staying(&view{now: at(60 * 3), calls: each}), "each failed once")
}

// With several runtimes, each says by itself which handlers it has.
func TestARuntimeIsSaidToHaveItsOwnHandlers(t *testing.T) {
	both := &call{method: "Status", from: "kubelet", has: "kata, runc", legs: []leg{{backend: "primary", has: "runc"}, {backend: "kata.io", has: "kata"}}}
	one := &call{method: "Status", from: "kubelet", has: "runc, wasm", legs: []leg{{backend: "primary"}}}
	v := &view{calls: []*call{one, both}}
	assert.Equal(t, "kata", v.handlersOf("kata.io"))
	assert.Equal(t, "runc", v.handlersOf("primary"), "the latest")
	v.calls = v.calls[:1]
	assert.Equal(t, "runc, wasm", v.handlersOf("primary"), "a message that is the same on both sides is recorded once")
	assert.Empty(t, v.handlersOf("kata.io"))
}
