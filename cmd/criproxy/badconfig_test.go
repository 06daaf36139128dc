package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

var update = flag.Bool("update", false, "write what is generated: testdata/config/*.txt")

// Each mistake in testdata/config has a file, and another one with criproxy's output.
func TestCheckSaysWhatIsBadInEachConfiguration(t *testing.T) {
	t.Chdir(badConfigs) // messages show the path as it was given
	for _, file := range badFiles(t, ".") {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := run(t.Context(), []string{"check", "-config", file}, &out, &errOut)
			refused(t, file, cli.ExitCode("check", err, &errOut), out.String(), errOut.String())
		})
	}
}

func TestEveryBadConfigurationIsRefusedAndSaysWhy(t *testing.T) {
	t.Parallel()
	untested.TakesLong(t) // a process for each
	for _, file := range badFiles(t, badConfigs) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			cmd := bounded.Command(t, "criproxy", "serve", "-config", filepath.Base(file), "-data-path", "own")
			cmd.Dir = badConfigs
			var out, errOut bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errOut
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit)
			refused(t, file, exit.ExitCode(), out.String(), errOut.String())
		})
	}
}

const badConfigs = "../../testdata/config"

// badFiles returns the configurations in a folder, all of them bad.
func badFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	require.NoError(t, err)
	require.Greater(t, len(files), 50)
	return files
}

// refused asserts that a command has refused a bad configuration, with the error in the file beside it.
func refused(t *testing.T, file string, code int, out, errOut string) {
	t.Helper()
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	beside := strings.TrimSuffix(file, ".yaml") + ".txt"
	if *update {
		require.NoError(t, os.WriteFile(beside, []byte(errOut), 0o644))
	}
	want, err := os.ReadFile(beside)
	require.NoError(t, err)
	assert.Equal(t, string(want), errOut)
	for line := range strings.Lines(errOut) {
		assert.True(t, strings.HasPrefix(line, "criproxy: "), line)
	}
}

func TestCheckSaysWhatWouldChange(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	check := func() (string, cli.Report) {
		var text, asJSON bytes.Buffer
		require.NoError(t, run(t.Context(), []string{"check", "-config", p.config}, &text, &text))
		require.NoError(t, run(t.Context(), []string{"check", "-o", "json", "-config", p.config}, &asJSON, &asJSON))
		var r cli.Report
		require.NoError(t, json.Unmarshal(asJSON.Bytes(), &r))
		return text.String(), r
	}
	text, r := check()
	assert.Nil(t, r.Changes)
	assert.Contains(t, r.ChangesUnknown, "check that criproxy is running")
	assert.Contains(t, text, "What this would change in the criproxy that runs is unknown: ")
	p.launch()
	text, r = check()
	assert.Empty(t, r.Changes)
	assert.NotNil(t, r.Changes)
	assert.Contains(t, text, "Nothing would change in the criproxy that runs.")

	// A file other than the watched one.
	p.config += "2"
	p.writeAll("- {name: beta.io, address: " + p.dir + "/1.sock, policy: skip}\nlistBudget: 3s\nhooks: none\nlisteners: [{path: /run/r.sock, mode: '0600'}]\n")
	text, r = check()
	assert.Equal(t, []config.Change{
		{Setting: "backends[beta.io].policy", Will: `"skip"`},
		{Setting: "hooks", Was: `"/etc/runtime/hookserver.d"`, Restart: true},
		{Setting: "listBudget", Was: "2s", Will: "3s"},
		{Setting: "listeners[/run/r.sock].mode", Will: `"0600"`},
		{Setting: "listeners[/run/r.sock].path", Will: `"/run/r.sock"`},
	}, r.Changes)
	assert.Contains(t, text, `  hooks: none, was "/etc/runtime/hookserver.d"   (waits for a restart)`)
	p.end()
}

// criproxy waited until nothing in the folder changed any more: a log beside the configuration kept it from ever being read.
func TestAFileIsReloadedBesideOneThatAlwaysChanges(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				_ = os.WriteFile(p.config+".log", []byte(time.Now().String()), 0o600)
			}
		}
	}()
	p.write("listBudget: 3s\n")
	testkit.Eventually(t, "it is reloaded", func() bool { _, r := p.status(); return r.Config.Reloads == 1 })
	close(stop)
	<-stopped
	p.end()
}

// A setting that waits for a restart still waits after another reload.
func TestChangesThatWaitForARestartAreNotForgotten(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	p.write("hooks: none\n")
	var r admin.Report
	testkit.Eventually(t, "the first reload is seen", func() bool { _, r = p.status(); return r.Config.Reloads == 1 })
	require.Len(t, r.Config.NeedsRestart, 1)
	p.write("hooks: none\nlistBudget: 3s\n")
	testkit.Eventually(t, "the second reload is seen", func() bool { _, r = p.status(); return r.Config.Reloads == 2 })
	assert.Len(t, r.Config.NeedsRestart, 1)
	p.end()
}

func TestSettingsThatNeedARestartAreNamedAsSuch(t *testing.T) {
	t.Parallel()
	c := &config.Config{Backends: []config.Backend{{Address: "/run/a.sock"}}}
	require.NoError(t, server.Check(c))
	for _, text := range []string{"admin: /run/x.sock", "metrics: '127.0.0.1:1'", "tracing: 'http://a:1'", "ids: native", "hooks: /x", "hookSkipLabel: a=b", "maxMessageBytes: 1000000",
		"flightRecorder: 1000000", "unsafeRaw: true", "capture: {path: /a.jsonl}"} {
		next := &config.Config{}
		require.NoError(t, next.Parse("c.yaml", []byte("backends: [{address: /run/a.sock}]\n"+text+"\n")))
		require.NoError(t, server.Check(next))
		assert.Len(t, c.NeedsRestart(next), 1, text)
		for _, one := range c.Settings().Changes(next.Settings()) {
			assert.True(t, one.Restart, "%v", one)
		}
	}
}

// The scripts in testdata/cli run the real main, with each of its commands.
func TestEveryCommandIsRunByAScript(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testdata/cli/*.txtar")
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	for _, c := range commands() {
		if c.name == "serve" {
			continue // scripts run serve without its name, as old unit files do
		}
		assert.True(t, regexp.MustCompile(`criproxy `+regexp.QuoteMeta(c.name)+`\b`).MatchString(all.String()), c.name)
	}
}
