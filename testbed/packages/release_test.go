package packages

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/ownimage"
)

// A clean clone makes a release with a key from outside, and a user checks it with the script of the docs.
func TestAReleaseIsWhatItSays(t *testing.T) {
	needs(t, "dpkg", "rpm", "git", "ssh-keygen")
	source, err := build.SourceDir()
	require.NoError(t, err)
	clone, dist := t.TempDir(), t.TempDir()
	run := func(dir string, program string, args ...string) (string, error) {
		cmd := host.CommandWithin(t.Context(), 10*time.Minute, program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(dir string, program string, args ...string) string {
		t.Helper()
		out, err := run(dir, program, args...)
		require.NoError(t, err, "%s %s\n%s", program, strings.Join(args, " "), out)
		return out
	}
	must(filepath.Dir(source), "sh", "-c", `git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$1"`, "sh", clone)
	must(clone, "git", "init", "-q")
	must(clone, "git", "add", ".")
	must(clone, "git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "all")
	key, other := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "other")
	for _, k := range []string{key, other} {
		must("/", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", k)
	}
	public, err := os.ReadFile(key + ".pub")
	require.NoError(t, err)
	signers := filepath.Join(t.TempDir(), "allowed_signers")
	require.NoError(t, os.WriteFile(signers, []byte(`release namespaces="criproxy" `+string(public)), 0o644))

	const version = "1.0.0"
	release := func(more ...string) (string, error) {
		return run(clone, "make", append([]string{"-s", "release", "ARCHS=" + runtime.GOARCH, "DIST=" + dist, "SIGNING_KEY=" + key}, more...)...)
	}
	verify := func() (string, error) {
		return run(clone, "make", "-s", "verify-release", "VERSION="+version, "DIST="+dist, "SIGNERS="+signers)
	}

	require.NoError(t, os.WriteFile(filepath.Join(clone, "note"), nil, 0o644))
	out, err := release("VERSION=" + version)
	require.Error(t, err, "a clone with changes makes no release")
	assert.Contains(t, out, "?? note")
	require.NoError(t, os.Remove(filepath.Join(clone, "note")))
	out, err = release("VERSION=next")
	require.Error(t, err)
	assert.Contains(t, out, "VERSION=next: want a version such as 1.0.0")

	out, err = release("VERSION=" + version)
	require.NoError(t, err, out)
	out, err = verify()
	require.NoError(t, err, out)
	t.Log(out)
	for _, said := range []string{"the signature of", "all files are what was signed", "criproxy_1.0.0-1_", "criproxy-1.0.0-1.", "oci.tar holds what its index names", "it says: criproxy 1.0.0"} {
		assert.Contains(t, out, said)
	}

	var provenance struct {
		Subject   []struct{ Name string }
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   map[string]string
				ResolvedDependencies []struct{ URI string }
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(dist, "criproxy-1.0.0.provenance.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &provenance))
	assert.Equal(t, strings.TrimSpace(must(clone, "git", "rev-parse", "HEAD")), provenance.Predicate.BuildDefinition.ExternalParameters["commit"])
	assert.Contains(t, string(data), "pkg:golang/google.golang.org/grpc@", "the modules")
	for program, module := range map[string]string{"": "google.golang.org/grpc", "-on-node": "golang.org/x/sys"} {
		bom, err := os.ReadFile(filepath.Join(dist, "criproxy-1.0.0"+program+"-linux-"+runtime.GOARCH+".cdx.json"))
		require.NoError(t, err)
		assert.Contains(t, string(bom), "pkg:golang/"+module+"@")
	}
	licences, err := os.ReadFile(filepath.Join(dist, "criproxy-1.0.0-licences.txt"))
	require.NoError(t, err)
	assert.Contains(t, string(licences), "google.golang.org/grpc v")
	files := t.TempDir()
	ownimage.Unpack(t, ownimage.Load(t, filepath.Join(dist, "criproxy-1.0.0-oci.tar")), files)
	must(dist, "dpkg-deb", "-x", one(t, dist, "*.deb"), filepath.Join(files, "deb"))
	for _, f := range []string{"usr/share/doc/criproxy/licences.txt", "deb/usr/share/doc/criproxy/licences.txt"} {
		inside, err := os.ReadFile(filepath.Join(files, f))
		require.NoError(t, err)
		assert.Equal(t, string(licences), string(inside), f)
	}
	assert.Contains(t, must(dist, "rpm", "-qpl", one(t, dist, "*.rpm")), "/usr/share/doc/criproxy/licences.txt")

	// What a user must not get.
	for name, harm := range map[string]struct {
		how  func()
		said string
	}{
		"another program": {func() { appendTo(t, filepath.Join(dist, "criproxy-1.0.0-linux-"+runtime.GOARCH)) }, "not what was signed"},
		"another package": {func() { appendTo(t, one(t, dist, "*.deb")) }, "not what was signed"},
		"another list":    {func() { appendTo(t, filepath.Join(dist, "criproxy-1.0.0.sha256")) }, "has signed"},
		"another file": {func() {
			require.NoError(t, os.WriteFile(filepath.Join(dist, "criproxy-1.0.0-linux-riscv64"), nil, 0o644))
		}, "the signed list does not have it"},
		"another plugin of kubectl": {func() { appendTo(t, one(t, dist, "kubectl-criproxy-*")) }, "not what was signed"},
		"no signature":              {func() { require.NoError(t, os.Remove(filepath.Join(dist, "criproxy-1.0.0.sha256.sig"))) }, "nobody says that these files are a release"},
		"a signature of somebody else": {func() {
			must(dist, "sh", "-c", `rm criproxy-1.0.0.sha256.sig; ssh-keygen -q -Y sign -f "$1" -n criproxy criproxy-1.0.0.sha256`, "sh", other)
		}, "no key that"},
	} {
		whole := t.TempDir()
		must("/", "cp", "-a", dist+"/.", whole)
		harm.how()
		out, err := verify()
		assert.Error(t, err, name)
		assert.Contains(t, out, harm.said, name)
		must("/", "sh", "-c", `rm -rf "$1"/*; cp -a "$2"/. "$1"`, "sh", dist, whole)
	}
}

// one returns the only file that matches a pattern in a folder.
func one(t testing.TB, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	require.Len(t, found, 1, pattern)
	return found[0]
}

func appendTo(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
