package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// The cases are the measurements in docs/evidence/conformance.md.
func TestCheckSaysWhichFiguresKubeletLacks(t *testing.T) {
	const (
		gate       = "PodAndContainerStatsFromCRI"
		containers = "their network in /stats/summary, their containers and their network in /metrics/cadvisor; "
	)
	for name, test := range map[string]struct {
		listen, ids string
		says        []string // in the note
		not         string
	}{
		"prefixes":                      {"/run/criproxy.sock", config.PrefixIDs, []string{containers, "--containerd=/run/criproxy.sock, which leaves the network", gate}, "-"},
		"native ids":                    {"/run/criproxy.sock", config.NativeIDs, []string{containers, "--containerd=/run/criproxy.sock or with", gate}, "leaves"},
		"containerd's path, prefixes":   {"/run/containerd/containerd.sock", config.PrefixIDs, []string{"beta.io: their network in /stats/summary; ", gate}, "/metrics/cadvisor"},
		"containerd's path, native ids": {"/run/containerd/containerd.sock", config.NativeIDs, nil, ""},
		"CRI-O's path":                  {"/run/crio/crio.sock", config.NativeIDs, []string{containers, gate}, "--containerd"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &config.Config{Listen: test.listen, IDs: test.ids, Backends: []config.Backend{{}, {Name: "beta.io"}}}
			notes := figureNotes(c, nil)
			if test.says == nil {
				assert.Empty(t, notes)
				return
			}
			require.Len(t, notes, 1)
			for _, part := range test.says {
				assert.Contains(t, notes[0], part)
			}
			if test.not != "-" {
				assert.NotContains(t, notes[0], test.not)
			}
			c.Backends = c.Backends[:1]
			assert.Empty(t, figureNotes(c, nil), "of a single runtime nothing is missing")
		})
	}
}

// check said "backend beta.io context deadline exceeded" of a runtime that hangs.
func TestCheckSaysWhatARuntimeHasNotAnswered(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.runtimes[1].Freeze()
	defer n.runtimes[1].Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c := *n.cfg
	r, err := Examine(ctx, &c)
	require.NoError(t, err)
	assert.Regexp(t, `^has not answered Version within [\d.]+m?s$`, r.Backends[1].Error)
}

func TestCheckNamesRuntimesWithoutMetrics(t *testing.T) {
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}})
	examine := func() string {
		c := *n.cfg
		c.DataPath = config.OwnPath // the other one has a warning
		r, err := Examine(t.Context(), &c)
		require.NoError(t, err)
		assert.Empty(t, r.Warnings)
		return strings.Join(r.Notes, "\n")
	}
	const nothing = "kubelet has nothing of the pods of beta.io in /metrics/cadvisor"
	assert.NotContains(t, examine(), nothing)
	n.runtimes[1].When(testkit.Failing(status.Error(codes.Unimplemented, "no"), "ListPodSandboxMetrics"))
	assert.Contains(t, examine(), nothing)
}
