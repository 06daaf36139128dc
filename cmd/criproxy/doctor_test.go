package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// doctor returns the output of criproxy doctor, as text and as JSON, and its error.
func (p *process) doctor() (string, []why.Finding, error) {
	p.Helper()
	return p.doctorOf("-config", p.config)
}

// doctorOf is doctor with the flag that says what to examine.
func (p *process) doctorOf(flag, path string) (string, []why.Finding, error) {
	p.Helper()
	var text, asJSON bytes.Buffer
	err := run(p.Context(), []string{"doctor", flag, path}, &text, &text)
	_ = run(p.Context(), []string{"doctor", "-o", "json", flag, path}, &asJSON, &asJSON) // as above
	var d cli.Diagnosis
	require.NoError(p, json.Unmarshal(asJSON.Bytes(), &d), "%s", asJSON.String())
	return text.String(), d.Findings, err
}

func finding(all []why.Finding, text string) *why.Finding {
	if i := slices.IndexFunc(all, func(f why.Finding) bool { return strings.Contains(f.Text, text) }); i >= 0 {
		return &all[i]
	}
	return nil
}

func TestDoctorSeesTheNodeThatItRunsOn(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	text, found, _ := p.doctor() // the exit code depends on other processes on this machine
	assert.Nil(t, finding(found, "of criproxy"), "%s", text)
	assert.Nil(t, finding(found, "backend beta.io is"))
	assert.Nil(t, finding(found, "is unknown: there is no admin socket"))

	// This process bypasses the proxy, and doctor can name it.
	_, err := runtimeapi.NewRuntimeServiceClient(p.connect(p.dir+"/1.sock")).Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	_, found, _ = p.doctor()
	behind := finding(found, fmt.Sprintf("(process %d) bypasses criproxy: it talks to backend beta.io directly", os.Getpid()))
	require.NotNil(t, behind, "%v", found)
	assert.Equal(t, why.Warning, behind.Level)
	assert.Contains(t, behind.Cure, "unix://"+p.front)

	p.runtimes[1].When(testkit.Slowing(3*time.Second, "ListPodSandbox", "StreamPodSandboxes"))
	testkit.Eventually(t, "it is seen to be slow", func() bool { _, r := p.status(); return r.Backends[1].State == "slow" })
	_, found, _ = p.doctor()
	slow := finding(found, "backend beta.io is slow: has not answered ")
	require.NotNil(t, slow, "%v", found)
	assert.Equal(t, why.Warning, slow.Level)

	p.runtimes[1].Kill()
	p.write("listBudgte: 1s\n")
	testkit.Eventually(t, "it is seen to be gone", func() bool { _, r := p.status(); return r.Backends[1].State == "gone" && r.Config.Error != "" })
	// The mistake is named, and the rest is examined as it runs.
	for _, which := range [][2]string{{"-config", p.config}, {"-admin", config.AdminBeside(p.front)}} {
		_, found, err = p.doctorOf(which[0], which[1])
		require.ErrorIs(t, err, cli.ErrReported)
		require.NotNil(t, finding(found, p.config+`:6:1: listBudgte: unknown key (did you mean "listBudget"?)`), "%v", found)
		assert.NotNil(t, finding(found, "backend beta.io is gone: "), "%v", found)
		assert.NotNil(t, finding(found, "socket of backend beta.io, "+p.dir+"/1.sock, does not exist"), "%v", found)
		assert.Nil(t, finding(found, "/run/criproxy."), "%v", found)
	}
	p.write("")
	require.NoError(t, os.Chmod(p.config, 0o660))
	text, found, err = p.doctor()
	require.ErrorIs(t, err, cli.ErrReported)
	require.NotNil(t, finding(found, "backend beta.io is gone: "), "%s", text)
	require.NotNil(t, finding(found, "/1.sock, does not exist"))
	require.NotNil(t, finding(found, "users other than the owner can change the configuration, "+p.config+" (mode 0660)"))
	for _, f := range found {
		assert.NotEmpty(t, f.Cure)
	}
	assert.Contains(t, text, "ERROR  ")
	assert.Contains(t, text, "    -> ")
	assert.Contains(t, text, "Errors found: ")
}

// Otherwise doctor would examine a node as if criproxy had no flags, and complain of what is not so.
func TestDoctorOfSeveralProcessesAsksWhichOne(t *testing.T) {
	if _, err := os.Stat(config.DefaultAdmin); err == nil {
		untested.Skip(t, "this machine has an admin socket at the default path, which doctor would ask")
	}
	t.Parallel()
	startedProcess(t)
	startedProcess(t)
	for _, command := range []string{"doctor", "check"} {
		cmd := bounded.Command(t, "criproxy", command)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CRIPROXY_ADMIN=") })
		out, err := cmd.CombinedOutput()
		assert.Error(t, err, command)
		assert.Contains(t, string(out), "criproxy processes run on this machine; choose one with -admin:", command)
	}
}
