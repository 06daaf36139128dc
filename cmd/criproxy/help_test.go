package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/why"
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

// wordsOf splits a command line as a shell does, up to a comment, a pipe or a redirection.
func wordsOf(line string) (words []string) {
	for _, w := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1) {
		if strings.ContainsAny(w[:1], "#|>&;<") {
			break
		}
		words = append(words, strings.NewReplacer("'", "", `"`, "").Replace(w))
	}
	return words
}

// printed returns the command lines of criproxy in a text, without the name of the program: those of blocks of code and
// between backquotes, and of prose the command with its flags.
func printed(text string) (lines [][]string) {
	names := []string{}
	for _, c := range commands() {
		names = append(names, c.name)
	}
	known := func(words []string) bool { return len(words) > 0 && slices.Contains(names, words[0]) }
	block := regexp.MustCompile(`(?m)^(?:\$ )?(?:sudo )?(?:kubectl )?(?:bin/)?criproxy (.*)$`)
	for _, m := range append(block.FindAllStringSubmatch(text, -1), regexp.MustCompile("`(?:kubectl )?criproxy ([^`\n]*)`").FindAllStringSubmatch(text, -1)...) {
		if words := wordsOf(m[1]); known(words) && (len(words) == 1 || !regexp.MustCompile(`^[a-z]+,?$`).MatchString(words[1])) {
			lines = append(lines, words)
		}
	}
	prose := regexp.MustCompile(`criproxy ([a-z][a-z-]*)((?: -[a-z][a-z-]*(?:[ =](?:'[^']*'|[A-Z][A-Z|]*|[0-9][0-9a-z]*))?)+)`)
	for _, m := range prose.FindAllStringSubmatch(text, -1) {
		if words := wordsOf(m[1] + m[2]); known(words) {
			lines = append(lines, words)
		}
	}
	return lines
}

// parses runs a command line that does nothing but show its help, so that the flags are parsed as ever.
func parses(t *testing.T, place string, words []string) {
	t.Helper()
	words = append(slices.Clone(words), "-h", "-h") // the first may become the value of a flag that the text leaves without one
	for i, w := range words {                       // what a reader fills in
		if w == "TIME" || w == "DURATION" || w == "5m" {
			words[i] = "5m"
		} else if w == "N" || w == "NUMBER" || w == "BYTES" {
			words[i] = "1"
		}
	}
	if words[0] == "help" {
		return
	}
	err := run(t.Context(), words, io.Discard, io.Discard)
	assert.ErrorIs(t, err, flag.ErrHelp, "%s: criproxy %s", place, strings.Join(words, " "))
}

// Commands that we print are accepted. why printed view -status 'Unavailable|DeadlineExceeded', which view refused.
func TestCommandsThatWePrintAreAccepted(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md", "packaging/monitoring/*.yaml", "internal/command/*/*.go", "internal/observe/*/*.go", "internal/server/*.go", "internal/server/*/*.go", "director/*.go", "internal/plugins/*.go"} {
		found, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	n := 0
	for _, file := range files {
		text := readFile(t, file)
		for _, words := range printed(string(text)) {
			n++
			parses(t, file, words)
		}
	}
	assert.Greater(t, n, 60)
}

// The page shows the command with the same filters: filter.js makes it.
func TestCommandsOfThePageAreAccepted(t *testing.T) {
	t.Parallel()
	script := readFile(t, "../../internal/observe/page/page/filter.js")
	values := map[string]string{"slower": "100ms"}
	filters, _, found := strings.Cut(string(script), "const CHIPS")
	require.True(t, found)
	names := regexp.MustCompile(`\{ name: "([a-z]+)"`).FindAllStringSubmatch(filters, -1)
	require.Greater(t, len(names), 5)
	for _, command := range []string{"tail -past", "view"} {
		for _, m := range names {
			value := values[m[1]]
			if value == "" {
				value = "!OK"
			}
			parses(t, "filter.js", append(wordsOf(command), "-"+m[1], value))
		}
		parses(t, "filter.js", append(wordsOf(command), "-memory", "-own"))
	}
}

// What why prints to show the calls of a finding shows some.
func TestCommandsThatWhyPrintsShowItsCalls(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"runtime-hung", "runtime-killed", "pull-fails", "flood", "kubelet-gap", "runtime-upgraded", "not-removed"} {
		var out bytes.Buffer
		_ = run(t.Context(), []string{"why", "-o", "json", recordingAt(name)}, &out, io.Discard) // it fails if something is wrong now
		var report why.Report
		require.NoError(t, json.Unmarshal(out.Bytes(), &report))
		for _, f := range report.Findings {
			if f.Show == "" {
				continue
			}
			out.Reset()
			err := run(context.Background(), append([]string{"view", "-o", "json", recordingAt(name)}, wordsOf(f.Show)...), &out, io.Discard)
			assert.NoError(t, err, "%s: %s", name, f.Show)
			assert.Contains(t, out.String(), `"call":`, "%s: view %s shows nothing", name, f.Show)
		}
	}
}

// A node may not have docs/runbook.md: help prints the section that a finding names.
func TestHelpPrintsTheRunbook(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"help", "runbook#a-runtime-is-gone"}, &out, io.Discard))
	assert.True(t, strings.HasPrefix(out.String(), "### A runtime is gone\n"), out.String())
	assert.NotContains(t, out.String(), "### Many nodes")
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"help", "runbook#runtimes"}, &out, io.Discard))
	assert.Contains(t, out.String(), "### A runtime is gone\n", "a chapter has its sections")
	assert.ErrorContains(t, run(t.Context(), []string{"help", "runbook#a-runtime-is-gon"}, &out, io.Discard), `(did you mean "a-runtime-is-gone"?)`)
	for _, r := range why.Rules() {
		out.Reset()
		require.NoError(t, run(t.Context(), []string{"help", "runbook#" + r.Name}, &out, io.Discard), r.Name)
	}
	out.Reset()
	_ = run(t.Context(), []string{"why", recordingAt("runtime-hung")}, &out, io.Discard)
	assert.Contains(t, out.String(), "criproxy help runbook#runtime\n")
}
