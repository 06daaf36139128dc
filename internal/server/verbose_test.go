package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestAReaderIsAClientThatMayDoNothingElse(t *testing.T) {
	me, other := &listen.Peer{Known: true, UID: 1, GIDs: []uint32{5}}, uint32(2)
	api, err := Read(&config.Config{})
	require.NoError(t, err)
	access, err := newAccess(&config.Config{}, api, nil)
	require.NoError(t, err)
	const list, stop = "/runtime.v1.RuntimeService/ListContainers", "/runtime.v1.RuntimeService/StopContainer"
	for _, c := range []struct {
		why    string
		method string
		hides  bool
		rules  []config.AccessRule
	}{
		{"no rules", list, false, nil},
		{"read-only", list, true, []config.AccessRule{{Methods: []string{config.ReadOnly}}}},
		{"patterns that only read", list, true, []config.AccessRule{{Methods: []string{"List*", "*Status", "ListPod*", "/runtime.v1.RuntimeService/List*"}}}},
		{"a pattern for more", list, false, []config.AccessRule{{Methods: []string{config.ReadOnly, "*Container*"}}}},
		{"all methods of a service", list, false, []config.AccessRule{{Methods: []string{"/runtime.v1.ImageService/*"}}}},
		{"a writing method", list, false, []config.AccessRule{{Methods: []string{config.ReadOnly, "StopContainer"}}}},
		{"its own name", list, false, []config.AccessRule{{Methods: []string{config.ReadOnly, "ListContainers"}}}},
		{"its whole name", list, false, []config.AccessRule{{Methods: []string{list}}}},
		{"another one's name", list, true, []config.AccessRule{{Methods: []string{config.ReadOnly, "ListImages"}}}},
		{"a rule for all methods", list, false, []config.AccessRule{{Methods: []string{config.ReadOnly}}, {UIDs: []uint32{1}}}},
		{"a rule for a group", list, false, []config.AccessRule{{Methods: []string{config.ReadOnly}}, {GIDs: []uint32{5}}}},
		{"a rule for another user", list, true, []config.AccessRule{{Methods: []string{config.ReadOnly}}, {UIDs: []uint32{other}}}},
		{"health beside", list, true, []config.AccessRule{{Methods: []string{config.ReadOnly, "/grpc.health.v1.Health/*"}}}},
		{"what it may not do", stop, true, []config.AccessRule{{Methods: []string{config.ReadOnly}}}},
	} {
		assert.Equal(t, c.hides, access.onlyReads(c.rules, c.method, me), c.why)
	}
}

// What read-only stands for is what the profile in use says, in all its versions, and no method of another API.
func TestReadOnlyStandsForTheReadsOfTheProfile(t *testing.T) {
	p := muxtest.LibraryProfile(t)
	p.Reads = []string{"List*", "Get"}
	a, err := newAccess(&config.Config{}, API{Config: director.Config{Profile: p, Schema: muxtest.Library}}, nil)
	require.NoError(t, err)
	rules, me := []config.AccessRule{{Methods: []string{config.ReadOnly}}}, &listen.Peer{}
	for method, may := range map[string]bool{
		muxtest.Method("List"): true, muxtest.Method("Get"): true, muxtest.Method("Put"): false,
		"/runtime.v1.RuntimeService/ListContainers": false, "/grpc.health.v1.Health/Check": true,
	} {
		assert.Equal(t, may, a.allows(rules, method, me), method)
	}
	assert.True(t, a.onlyReads([]config.AccessRule{{Methods: []string{muxtest.Method("List*")}}}, muxtest.Method("List"), me))
	assert.False(t, a.onlyReads([]config.AccessRule{{Methods: []string{muxtest.Method("*")}}}, muxtest.Method("List"), me))
}
