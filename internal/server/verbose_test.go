package server

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
)

func TestAReaderIsAClientThatMayDoNothingElse(t *testing.T) {
	me, other := &listen.Peer{Known: true, UID: 1, GIDs: []uint32{5}}, uint32(2)
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
		assert.Equal(t, c.hides, onlyReads(c.rules, c.method, me), c.why)
	}
}
