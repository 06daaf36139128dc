package outage_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A finding is a finding of criproxy doctor.
type finding struct{ Level, About, Text, Cure string }

// A diagnosis is the output of criproxy doctor -o json.
type diagnosis struct {
	Findings []finding
	Kubelet  struct {
		Process           int
		Version, Endpoint string
		Driver            string `json:"cgroup_driver"`
	}
	code int
}

// doctor runs the real criproxy doctor in the kubelet's mount namespace, with criproxy's current configuration or
// another one. On a busy machine a runtime is slow at times, which doctor rightly says: then doctor is asked again, for a
// minute.
func (n *node) doctor(t *testing.T, config string) diagnosis {
	t.Helper()
	pid, alive := n.kubelet.PID()
	require.True(t, alive)
	if config == "" {
		config = filepath.Join(n.proxy.Dir, "criproxy.yaml")
	}
	for began := time.Now(); ; time.Sleep(time.Second) {
		cmd := host.Command(t.Context(), "nsenter", "-t", strconv.Itoa(pid), "-m", "--",
			n.proxy.Program, "doctor", "-o", "json", "-config", config, "-listen", n.proxy.Socket(), "-state-dir", filepath.Join(n.proxy.Dir, "state"))
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		d := diagnosis{code: cmd.ProcessState.ExitCode()}
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &d), "%s%s", &stdout, &stderr)
		slow := slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.Text, " is slow: has not answered ") })
		if !slow || time.Since(began) > time.Minute {
			return d
		}
		n.say("a runtime is slow, doctor says")
	}
}

// texts returns the findings by level.
func (d diagnosis) texts(levels ...string) []string {
	all := []string{}
	for _, f := range d.Findings {
		for _, level := range levels {
			if f.Level == level {
				all = append(all, f.Text)
			}
		}
	}
	return all
}

// containerd 1.7 lacks RuntimeConfig, which is a note and not a problem.
const untold = "the primary does not report its cgroup driver; kubelet uses cgroupfs, from its own configuration"

// The note about a name as long as the second runtime's.
const shortIDs = "backend " + two + ": crictl shows 13 characters of an id, and after this name only 3 of them are the runtime's id: too few to use with crictl, unless --no-trunc shows the whole id"

func TestDoctorIsSilentOnAHealthyNodeAndNamesBypasses(t *testing.T) {
	t.Parallel()
	n := newNode(t, "doctor", variant{})
	n.runAll(t) // so that there are log links for both runtimes

	healthy := n.doctor(t, "")
	assert.Zero(t, healthy.code)
	assert.Empty(t, healthy.texts("error", "warning"), "no false alarm")
	assert.ElementsMatch(t, []string{untold, shortIDs}, healthy.texts("note"))
	pid, _ := n.kubelet.PID()
	assert.Equal(t, pid, healthy.Kubelet.Process, "of all kubelets on this machine")
	assert.Equal(t, n.proxy.Socket(), healthy.Kubelet.Endpoint)
	assert.Equal(t, "cgroupfs", healthy.Kubelet.Driver)
	said, err := host.Command(t.Context(), n.kubelet.Binaries.Kubelet, "--version").Output()
	require.NoError(t, err)
	assert.Equal(t, "Kubernetes "+healthy.Kubelet.Version+"\n", string(said))

	// Another client follows the events of the second runtime, bypassing criproxy.
	ctr := exec.CommandContext(t.Context(), filepath.Join(n.two.Binaries.Containerd["2.4"], "ctr"), "-a", n.two.Socket(), "events")
	require.NoError(t, ctr.Start())
	behind := fmt.Sprintf("ctr (process %d) bypasses criproxy: it talks to backend %s directly, at %s", ctr.Process.Pid, two, n.two.Socket())
	require.NoError(t, host.Poll(t.Context(), "doctor to see ctr connected", func() bool { return len(n.doctor(t, "").texts("warning")) > 0 }))
	assert.Equal(t, []string{behind}, n.doctor(t, "").texts("error", "warning"))
	require.NoError(t, ctr.Process.Kill())
	require.Error(t, ctr.Wait())
	assert.Empty(t, n.doctor(t, "").texts("error", "warning"))

	// The second runtime is removed from the configuration, but its pods still exist.
	one := filepath.Join(n.kubelet.Dir, "one.yaml")
	require.NoError(t, os.WriteFile(one, fmt.Appendf(nil, "backends: [{address: %s}]\n", n.one.Socket()), 0o600))
	assert.Equal(t, []string{"there are links to logs of containers of " + two + ", which is no longer a backend"}, n.doctor(t, one).texts("warning"))

	require.NoError(t, n.two.Kill())
	require.NoError(t, host.Poll(t.Context(), "doctor to find two errors", func() bool { return len(n.doctor(t, "").texts("error")) == 2 }))
	away := n.doctor(t, "")
	assert.Equal(t, 1, away.code)
	assert.Contains(t, away.texts("error")[0], "backend "+two+" is gone: ")
	assert.Equal(t, fmt.Sprintf("no process serves %s of backend %s any more: the file is a leftover", n.two.Socket(), two), away.texts("error")[1])
	require.NoError(t, n.two.Start(t.Context()))
	n.say("doctor has seen it well and ill")
}

func TestDoctorSeesBypassesAndUnequalCgroupDrivers(t *testing.T) {
	t.Parallel()
	n := &node{lane: "past", began: time.Now(), ctx: t.Context()}
	testbed.Require(t, build.Kubelet)
	reg := testbed.NewRegistry(t)
	n.one = testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4"})
	n.two = testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4", Name: "by-systemd", ExtraTOML: `
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = true
`})
	n.proxy = testbed.NewProxy(t, fmt.Sprintf("backends:\n- address: %s\n- name: %s\n  address: %s\n", n.one.Socket(), two, n.two.Socket()))
	n.kubelet = testbed.NewKubelet(t, kubelet.Config{Endpoint: n.proxy.Endpoint(), DropIn: "containerRuntimeEndpoint: " + n.one.Endpoint() + "\n"})

	d := n.doctor(t, "")
	assert.Equal(t, 1, d.code)
	assert.Equal(t, n.one.Socket(), d.Kubelet.Endpoint)
	assert.ElementsMatch(t, []string{
		fmt.Sprintf("kubelet bypasses criproxy: it speaks to %s, not to %s", n.one.Socket(), n.proxy.Socket()),
		fmt.Sprintf("backend %s uses the cgroup driver systemd, the primary cgroupfs: kubelet names the cgroups of all pods as the primary's driver does, so pods of %[1]s fail or escape their limits", two),
		shortIDs,
	}, d.texts("error", "warning", "note"))
	for _, f := range d.Findings {
		if f.About == "kubelet" {
			assert.Equal(t, fmt.Sprintf("set containerRuntimeEndpoint: unix://%s in %s, and restart kubelet", n.proxy.Socket(), filepath.Join(n.kubelet.Dir, "conf.d/10-drop-in.conf")), f.Cure)
		}
	}
	n.say("doctor has seen a kubelet that goes past us")
}
