package packages

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// moved are the names that the last version before the first release had elsewhere: it promised nothing. After the
// first release, nothing is like this.
var moved = map[string]string{
	"director": `- Backend.Known: changed from *Memory to *Memory
- Budget: removed
- Config.Profile: changed from *Profile to *Profile
- Conn: removed
- ConnConfig: removed
- Fail: changed from github.com/criproxy/criproxy/internal/memory.Policy to github.com/criproxy/criproxy/internal/backend.Policy
- LastKnown: changed from github.com/criproxy/criproxy/internal/memory.Policy to github.com/criproxy/criproxy/internal/backend.Policy
- Memory: changed from github.com/criproxy/criproxy/internal/memory.Conn to github.com/criproxy/criproxy/internal/backend.Backend
- MemoryConfig.Policy: changed from github.com/criproxy/criproxy/internal/memory.Policy to github.com/criproxy/criproxy/internal/backend.Policy
- MemoryConfig: old is comparable, new is not
- NewConn: removed
- ParseProfile: changed from func([]byte) (*Profile, error) to func([]byte) (*Profile, error)
- Policy: changed from github.com/criproxy/criproxy/internal/memory.Policy to github.com/criproxy/criproxy/internal/backend.Policy
- Profile: changed from github.com/criproxy/criproxy/internal/settings/profile.Profile to github.com/criproxy/criproxy/internal/profile.Profile
- Remember: changed from func(*Conn, Config, MemoryConfig) (Backend, func(ctx context.Context) error, error) to func(Backend, Config, MemoryConfig) (Backend, func(ctx context.Context) error, error)
- Skip: changed from github.com/criproxy/criproxy/internal/memory.Policy to github.com/criproxy/criproxy/internal/backend.Policy`,
	"criadapter": `- Hooks: changed from func(HookOptions) (Plugins, error) to func(HookOptions) (Plugins, error)
- Options.Rules: changed from *github.com/criproxy/criproxy/director.Profile to *github.com/criproxy/criproxy/director.Profile
- Plugins: changed from github.com/criproxy/criproxy/internal/hook.Config to github.com/criproxy/criproxy/internal/plugins.Config`,
}

// Programs that import the packages of docs/stability.md compile with this version if they did with the previous
// release: apidiff, Go's own tool, compares the two.
func TestPublicPackagesStayCompatible(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: it builds the previous release (-short)")
	}
	before, err := build.Previous()
	if errors.Is(err, build.ErrNoHistory) {
		untested.Skip(t, err)
	}
	require.NoError(t, err)
	source, err := build.SourceDir()
	require.NoError(t, err)
	root, tmp := filepath.Dir(source), t.TempDir()
	in := func(dir string, name string, args ...string) string {
		t.Helper()
		cmd := host.CommandWithin(t.Context(), 10*time.Minute, name, args...)
		cmd.Dir, cmd.Env = dir, build.Env(os.Environ(), false)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
		return strings.TrimSpace(string(out))
	}
	apidiff := filepath.Join(tmp, "apidiff")
	in(root, "go", "build", "-modfile=.ci/tools/go.mod", "-o", apidiff, "golang.org/x/exp/cmd/apidiff")
	text, err := os.ReadFile(filepath.Join(root, "docs/stability.md"))
	require.NoError(t, err)
	for _, pkg := range []string{"codec", "director", "director/dial", "rewrite", "criadapter", "hook/plugin", "hook/hookapi"} {
		assert.Contains(t, string(text), "`"+pkg+"`", "the page lists it")
		if _, err := os.Stat(filepath.Join(before.Dir, pkg)); errors.Is(err, fs.ErrNotExist) {
			continue // it is new
		}
		want := ""
		if !strings.HasPrefix(before.Name, "v") { // it is no release
			want = moved[pkg]
		}
		path, file := "github.com/criproxy/criproxy/"+pkg, filepath.Join(tmp, strings.ReplaceAll(pkg, "/", "-"))
		in(before.Dir, apidiff, "-w", file, path)
		assert.Equal(t, want, in(root, apidiff, "-incompatible", file, path), "%s, since %s: what has compiled must compile", pkg, before.Name)
	}
}
