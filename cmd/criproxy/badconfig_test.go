package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
)

var update = flag.Bool("update", false, "write what is generated: testdata/config/*.txt")

// Each mistake in testdata/config has a file, and another one with criproxy's output.
func TestCheckSaysWhatIsBadInEachConfiguration(t *testing.T) {
	t.Chdir("../../testdata/config") // messages show the path as it was given
	files, err := filepath.Glob("*.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 50)
	for _, file := range files {
		name := strings.TrimSuffix(file, ".yaml")
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := run(t.Context(), []string{"check", "-config", file}, &out, &errOut)
			assert.Equal(t, 1, cli.ExitCode("check", err, &errOut))
			assert.Empty(t, out.String())
			if *update {
				require.NoError(t, os.WriteFile(name+".txt", errOut.Bytes(), 0o644))
			}
			assert.Equal(t, string(readFile(t, name+".txt")), errOut.String())
		})
	}
}

func TestCheckSaysWhatWouldChange(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	check := func() (string, cli.Report) {
		var r cli.Report
		require.NoError(t, json.Unmarshal([]byte(says(t, "check", "-o", "json", "-config", p.config)), &r))
		return says(t, "check", "-config", p.config), r
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
