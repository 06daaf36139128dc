package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// status returns the output of criproxy status for p, as text and as JSON.
func (p *process) status() (string, admin.Report) {
	p.Helper()
	text, asJSON := p.says("status"), p.says("status", "-o", "json")
	var r admin.Report
	dec := json.NewDecoder(strings.NewReader(asJSON))
	dec.DisallowUnknownFields()
	require.NoError(p, dec.Decode(&r))
	return text, r
}

func TestStatusShowsAllOnOneScreen(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	ro := filepath.Join(p.dir, "ro.sock")
	p.write("listeners:\n- path: " + ro + "\n  mode: '0622'\n  access: [{methods: [read-only], uids: [7]}]\n")
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	for i, target := range []string{"", "", "beta.io"} {
		_, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podOn(target, fmt.Sprint("pod", i))})
		require.NoError(t, err)
	}
	for range 2 {
		_, err := client.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "gamma.io__12"})
		require.Error(t, err)
	}
	_, err := runtimeapi.NewRuntimeServiceClient(p.connect(ro)).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.Error(t, err)

	text, r := p.status()
	assert.True(t, r.Ready)
	assert.Equal(t, config.Version, r.Version)
	assert.Equal(t, config.AdminBeside(p.front), r.Admin)
	require.Len(t, r.Listeners, 2)
	assert.Equal(t, p.front, r.Listeners[0].Path)
	assert.Equal(t, 1, r.Listeners[1].Connections.Now)
	require.Len(t, r.Listeners[1].Connections.Clients, 1)
	assert.Contains(t, r.Listeners[1].Connections.Clients[0], fmt.Sprintf("(process %d)", os.Getpid()))
	r.Listeners[1].Connections = admin.Connections{}
	assert.Equal(t, admin.Listener{Path: ro, Mode: "0622", Owner: r.Listeners[0].Owner, Access: []config.AccessRule{{Methods: []string{"read-only"}, UIDs: []uint32{7}}}, Refused: 1}, r.Listeners[1])
	require.Len(t, r.Backends, 2)
	for i, pods := range []int{2, 1} {
		b := r.Backends[i]
		assert.Equal(t, "up", b.State)
		assert.Equal(t, pods, *b.Pods)
		assert.Equal(t, 0, *b.Containers)
		assert.NotNil(t, b.Images)
		assert.Equal(t, []string{"runtime.v1"}, b.API)
		assert.NotEmpty(t, b.Runtime)
		assert.False(t, b.LastKnown)
		assert.False(t, b.Since.IsZero())
	}
	require.Len(t, r.Errors, 1)
	assert.Equal(t, 2, r.Errors[0].Count)
	assert.Equal(t, "StopContainer NotFound", r.Errors[0].Method+" "+r.Errors[0].Code)
	assert.Contains(t, text, ", 2 times: StopContainer NotFound: criproxy: ")
	assert.Regexp(t, `(?m)^beta\.io +up +\d+s .* runtime\.v1 +1 +0 +0 `, text)
	assert.Contains(t, text, "read-only for uids [7] (1 call refused)")
	assert.Contains(t, text, p.config+" (")

	p.runtimes[1].Kill()
	p.write("listBudgte: 3s\n")
	require.NoError(t, syscall.Kill(p.serving(), syscall.SIGHUP))
	testkit.Eventually(t, "the mistake is seen", func() bool { text, r = p.status(); return r.Config.Error != "" })
	testkit.Eventually(t, "the runtime is down", func() bool { text, r = p.status(); return r.Backends[1].State == "gone" })
	assert.Equal(t, 1, *r.Backends[1].Pods)
	assert.True(t, r.Backends[1].LastKnown)
	assert.True(t, r.Ready, "another runtime's health is not the node's")
	assert.Contains(t, text, "beta.io: the counts are from the cache")
	assert.Contains(t, text, "NOT RELOADED ")
	assert.Contains(t, text, `did you mean "listBudget"?`)
}

// A connection to a runtime that hangs says nothing: it was up for ever if it was the only one (issue 43).
func TestTheOnlyRuntimeIsGoneWhileItHangs(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.writeAll("goneAfter: 3s\n")
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	_, err := client.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	p.runtimes[0].Freeze()
	waits := make(chan error, 1)
	go func() {
		_, err := client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		waits <- err
	}()
	var text string
	var r admin.Report
	const why = "accepts connections, and has answered nothing for 3s"
	testkit.Eventually(t, "it shows as gone", func() bool { text, r = p.status(); return r.Backends[0].State == "gone" && strings.Contains(text, why) })
	assert.False(t, r.Ready)
	assert.Equal(t, why, r.Backends[0].Error)
	p.runtimes[0].Thaw()
	testkit.Eventually(t, "it is up", func() bool { _, r = p.status(); return r.Ready && r.Backends[0].State == "up" })
	assert.NoError(t, <-waits, "a call waits as it does without criproxy")
	log := readFile(t, p.log)
	assert.Contains(t, string(log), `"Backend is up" backend="primary"`)
}
