package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// -o was a format in some commands, and a file in others.
func TestFlagsMeanTheSameEverywhere(t *testing.T) {
	t.Parallel()
	values := map[string]map[string]bool{} // :: name of a flag → what it takes, in any command
	for _, c := range commands() {
		for _, f := range c.flags() {
			if values[f.name] == nil {
				values[f.name] = map[string]bool{}
			}
			values[f.name][f.value] = true
		}
	}
	assert.Equal(t, map[string]bool{"FORMAT": true}, values["o"])
	several := map[string]string{ // flags whose value some commands restrict
		"backend": "NAME PATTERN", "connect": "PATH PATH,NAME:PATH,...", "listen": "ADDRESS PATH", "proto": "FILE FILES", "proto-path": "FOLDER FOLDERS",
	}
	for name, takes := range values {
		if len(takes) > 1 {
			assert.Equal(t, several[name], strings.Join(slices.Sorted(maps.Keys(takes)), " "), "-%s", name)
		}
	}
}

func TestUsageErrorsNameTheHelpOfTheirCommand(t *testing.T) {
	t.Parallel()
	for _, c := range commands() {
		err := run(t.Context(), []string{c.name, "-no-such-flag"}, io.Discard, io.Discard)
		var out bytes.Buffer
		assert.Equal(t, 2, cli.ExitCode(c.name, err, &out), c.name)
		if c.name != "help" {
			assert.Contains(t, out.String(), "criproxy: see criproxy help "+c.name+"\n")
		}
	}
}

// pods -backend nosuch named no help, as other commands do.
func TestABackendThatDoesNotExistIsAMistakeOnTheCommandLine(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	at, healthy := config.AdminBeside(p.front), recordingAt("healthy")
	asked := map[string][]string{
		"pods": {"-admin", at}, "events": {"-admin", at}, "tail": {"-admin", at}, "view": {healthy},
		"replay": {healthy, "-dry-run"}, "fixture": {healthy, "-listen", filepath.Join(p.dir, "fixture.sock")},
		"tap": nil, // it shows what comes
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for _, c := range commands() {
		if !slices.ContainsFunc(c.flags(), func(f flagHelp) bool { return f.name == "backend" }) {
			continue
		}
		args, known := asked[c.name]
		assert.True(t, known, c.name)
		if args == nil {
			continue
		}
		var out, errOut bytes.Buffer
		err := c.run(ctx, append(args, "-backend", "nosuch"), &out, &errOut)
		assert.Equal(t, 2, cli.ExitCode(c.name, err, &errOut), "%s: %v", c.name, err)
		assert.Empty(t, out.String(), c.name)
		assert.Contains(t, errOut.String(), `"nosuch"`, c.name)
		assert.Contains(t, errOut.String(), "criproxy: see criproxy help "+c.name+"\n")
	}
}
