package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/plugins"
)

var updatePromises = flag.String("update-promises", "", "write what this version promises to testdata/compat/`VERSION`")

// promises returns what programs and people may rely on by name, of this version, each in a line: docs/stability.md.
func promises(t *testing.T) (all []string) {
	t.Helper()
	read := func(path string) string {
		data := readFile(t, filepath.Join("..", "..", path))
		return string(data)
	}
	found := func(path, pattern string) (all [][]string) {
		all = regexp.MustCompile(pattern).FindAllStringSubmatch(read(path), -1)
		require.NotEmpty(t, all, "%s: %s", path, pattern)
		return all
	}
	// Other tests hold these files to the program.
	for _, m := range found("packaging/completion/criproxy.bash", `(?m)^\t([a-z-]+)\) flags='(.*)' ;;$`) {
		all = append(all, "command "+m[1])
		for f := range strings.FieldsSeq(m[2]) {
			all = append(all, "flag "+m[1]+" "+f)
		}
	}
	for _, m := range found("docs/config.md", "(?m)^### `(.*)`$") {
		all = append(all, "key "+m[1])
	}
	for _, m := range found("docs/metrics.md", "(?m)^\\| `(criproxy_[a-z_]+)` \\| (.*?) \\|") {
		all = append(all, strings.TrimSpace("metric "+m[1]+" "+m[2]))
	}
	for _, m := range found("packaging/monitoring/alerts.yaml", `(?m)- alert: (\w+)`) {
		all = append(all, "alert "+m[1])
	}
	for _, m := range found("docs/criproxy.8", `(?m)^\.SH EXIT STATUS\n(.*)$`) {
		for _, status := range regexp.MustCompile(`\d`).FindAllString(m[1], -1) {
			all = append(all, "exit status "+status)
		}
	}
	for name, v := range map[string]any{
		"status": admin.Report{}, "pods": admin.Pods{}, "hooks": plugins.State{}, "version": admin.Version{}, "why": why.Report{},
		"doctor": cli.Diagnosis{}, "check": cli.Report{}, "instances": []cli.Instance{}, "events": capture.Change{},
		"where": []show.Place{}, "calls": calls.Printed{}, "stats": []calls.MethodStats{}, "replay": cli.Replayed{},
	} {
		keys := map[string]bool{}
		jsonKeys(reflect.TypeOf(v), "", keys)
		for k := range keys {
			all = append(all, "json "+name+" "+k)
		}
	}
	for key, value := range defaults(t) {
		all = append(all, fmt.Sprintf("default %s %q", key, value))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// defaults returns the values of the keys that decide where calls go, in a configuration that has none of them. An empty
// newPodsTo is the primary, and an empty policy last-known.
func defaults(t *testing.T) map[string]string {
	t.Helper()
	var c config.Config
	require.NoError(t, c.Parse("config.yaml", []byte("backends: [{name: beta.io, address: /run/beta.sock}, {address: /run/alpha.sock}]")))
	require.NoError(t, c.Check())
	primary := c.Backends[0]
	return map[string]string{
		"listen": c.Listen, "ids": c.IDs, "newPodsTo": c.NewPodsTo, "hooks": c.Hooks, "hookSkipLabel": c.HookSkipLabel,
		"backends[].policy": primary.Policy, "the primary": primary.Address,
	}
}

// jsonKeys adds the paths of the keys that a type has in JSON, with their types.
func jsonKeys(t reflect.Type, at string, keys map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer:
		jsonKeys(t.Elem(), at, keys)
	case reflect.Slice, reflect.Array:
		if t == reflect.TypeFor[json.RawMessage]() {
			keys[at+" any"] = true
			return
		}
		if t.Elem().Kind() == reflect.Uint8 {
			keys[at+" string"] = true
			return
		}
		jsonKeys(t.Elem(), at+"[]", keys)
	case reflect.Map:
		jsonKeys(t.Elem(), at+"{}", keys)
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			keys[at+" time"] = true
			return
		}
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-" || !f.IsExported() && !f.Anonymous:
			case name == "" && f.Anonymous:
				jsonKeys(f.Type, at, keys)
			default:
				if name == "" {
					name = f.Name
				}
				jsonKeys(f.Type, at+"."+name, keys)
			}
		}
	case reflect.String, reflect.Bool, reflect.Interface:
		keys[fmt.Sprintf("%s %s", at, t.Kind())] = true
	default:
		keys[at+" number"] = true
	}
}

// compat is the folder with what each release has promised, and with a file of each kind that it has written.
var compat = filepath.Join("..", "..", "testdata", "compat")

func TestWhatAReleaseHasPromisedHolds(t *testing.T) {
	now := promises(t)
	if *updatePromises != "" {
		dir := filepath.Join(compat, *updatePromises)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "promises.txt"), []byte(strings.Join(now, "\n")+"\n"), 0o644))
	}
	releases, err := filepath.Glob(filepath.Join(compat, "*", "promises.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, releases)
	for _, path := range releases {
		data := readFile(t, path)
		for line := range strings.Lines(string(data)) {
			assert.Contains(t, now, strings.TrimSpace(line), "%s: it was promised; keep it, or make a new major version", path)
		}
	}
}

// The latest release is the first one of the changelog. Everything that names a version of criproxy names that one.
func TestVersionsAgreeEverywhere(t *testing.T) {
	root := filepath.Join("..", "..")
	changelog := readFile(t, filepath.Join(root, "CHANGELOG.md"))
	titles := regexp.MustCompile(`(?m)^## (\S+)`).FindAllStringSubmatch(string(changelog), -1)
	require.Greater(t, len(titles), 1, "a section Unreleased and one of a release")
	assert.Equal(t, "Unreleased", titles[0][1])
	latest := titles[1][1]
	assert.Regexp(t, `^\d+\.\d+\.\d+$`, latest)
	assert.FileExists(t, filepath.Join(compat, latest, "promises.txt"), "go test ./cmd/criproxy -run Promised -args -update-promises "+latest)

	named := regexp.MustCompile(`(?:criproxy[-_: /]v?|newTag: "?v?|kubectl-criproxy[-_]v?|VERSION=|verify-release\.sh FOLDER )(\d+\.\d+\.\d+)`)
	count := 0
	for _, pattern := range []string{"README.md", "SECURITY.md", "docs/*.md", "packaging/*.yaml", "packaging/*/*.yaml", "packaging/*/*/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range files {
			text := readFile(t, path)
			for _, m := range named.FindAllStringSubmatch(string(text), -1) {
				count++
				assert.Equal(t, latest, m[1], "%s: %s", path, m[0])
			}
		}
	}
	assert.Positive(t, count)
	daemonSet := readFile(t, filepath.Join(root, "packaging/kubernetes/daemonset.yaml"))
	assert.Contains(t, string(daemonSet), "/criproxy:"+latest)
}
