package testbed_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// machine describes what is on this machine, found by other means than Leftovers uses, so that a blind
// spot of it would show: processes, mounts, links, cgroups, sockets and files that mention any of words.
func machine(words ...string) []string {
	var found []string
	note := func(kind, text string) {
		for _, word := range words {
			if strings.Contains(text, word) {
				found = append(found, kind+" "+text)
				return
			}
		}
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range commands {
		data, _ := os.ReadFile(file)
		note("process", strings.ReplaceAll(string(data), "\x00", " "))
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		note("mount", line)
	}
	links, _ := os.ReadDir("/sys/class/net")
	for _, link := range links {
		note("link", link.Name())
	}
	for _, root := range []string{"/sys/fs/cgroup", "/run/containerd", "/var/lib/cni", "/var/run/netns", os.TempDir()} {
		filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				note("file", path)
			}
			return nil
		})
	}
	return found
}

// busy gives an instance something of everything to leave behind and returns names to look for.
func busy(t *testing.T, b *bench) []string {
	t.Helper()
	podID, id := b.run(t, "web", "serve")
	host := b.pod(t, runtimes.OnHostNetwork(b.PodConfig("host")), "alt")
	loose := b.PodConfig("loose")
	loose.Linux.CgroupParent = "" // as crictl sends it by default
	looseID := b.pod(t, loose, "")
	stubborn := b.container(t, looseID, loose, runtimes.ContainerConfig("stubborn", b.reg.Image("testbed/app:1"), "stubborn"))
	_, err := b.Ctr(t.Context(), "-n", "elsewhere", "images", "pull", "--plain-http", b.reg.Image("testbed/app:1"))
	require.NoError(t, err)
	_, err = b.Ctr(t.Context(), "-n", "elsewhere", "run", "-d", b.reg.Image("testbed/app:1"), "other-"+b.Bridge())
	require.NoError(t, err)
	return []string{b.Dir, b.CgroupParent(), podID, id, host, looseID, stubborn, "other-" + b.Bridge()}
}

func TestDestroyLeavesNothing(t *testing.T) {
	for name, spoil := range map[string]func(*bench) error{
		"running":    func(*bench) error { return nil },
		"killed":     func(b *bench) error { return b.Kill() },
		"frozen":     func(b *bench) error { return b.Freeze() },
		"terminated": func(b *bench) error { return b.Terminate(context.Background()) },
		"socketless": func(b *bench) error { return os.Remove(b.Socket()) },
		"forgotten":  func(b *bench) error { return os.Remove(filepath.Join(b.Dir, "instance.json")) },
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, b *bench) {
				names := busy(t, b)
				require.GreaterOrEqual(t, len(machine(names...)), len(names), "the search finds what is there")
				require.NotEmpty(t, host.Leftovers(b.Dir))
				require.NoError(t, spoil(b))
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				require.NoError(t, b.Destroy(ctx))
				assert.Empty(t, host.Leftovers(b.Dir))
				// Another instance may have the bridge's name by now, if other tests run in parallel.
				assert.Empty(t, machine(names...))
				assert.NoDirExists(t, "/sys/class/net/"+b.Bridge())
				assert.NoError(t, b.Destroy(ctx), "a second time does no harm")
			})
		})
	}
}

func TestCleanNeedsNoInstance(t *testing.T) {
	b := start(t, runtimes.Config{Version: "1.7"})
	names := busy(t, b)
	assert.Contains(t, host.Instances(), b.Dir)
	require.NoError(t, b.Kill())
	require.NoError(t, host.Clean(b.Dir))
	assert.Empty(t, machine(names...))
	assert.NotContains(t, host.Instances(), b.Dir)
}

func TestCleanRefusesForeignFolders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	assert.ErrorContains(t, host.Clean(dir), "did not make it")
	assert.ErrorContains(t, host.ClaimDir(dir), "not empty")
	assert.FileExists(t, file)
}

func TestFailedStartLeavesNothing(t *testing.T) {
	bin := testbed.Require(t)
	dir, err := os.MkdirTemp("", "ctb-")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = runtimes.StartContainerd(ctx, runtimes.Config{Binaries: bin, Registry: "127.0.0.1:1", Dir: dir})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Empty(t, host.Leftovers(dir))
	assert.Empty(t, machine(dir))
}
