package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// descriptors is the file in which containerd publishes the descriptors of its services. It is part of the module from
// which containerd is built.
func descriptors(t testing.TB) string {
	t.Helper()
	source, err := build.SourceDir()
	require.NoError(t, err)
	cmd := host.CommandWithin(t.Context(), 10*time.Minute, "go", "mod", "download", "-json", "github.com/containerd/containerd/api")
	cmd.Dir = filepath.Join(source, "build/pins/containerd24")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	require.NoError(t, err)
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &module))
	return filepath.Join(module.Dir, "next.txtpb")
}

// Two containerds behind one socket, with only a profile: the namespace of a call chooses the containerd. ctr is the
// client, and does not notice.
func TestCtrWorksOnTwoContainerdsByTheirNamespaces(t *testing.T) {
	b := start(t)
	source, err := build.SourceDir()
	require.NoError(t, err)
	// Each runtime has its own namespace; a third namespace is not mapped, and belongs to the primary.
	const blue = "blue"
	proxy := testbed.NewProxy(t, fmt.Sprintf(`
profile: %s
proto: [%s]
backends:
- address: %s
- name: %s
  address: %s
  maps: {namespaces: {%s: %[6]s}}
`, filepath.Join(filepath.Dir(source), "docs/profiles/containerd.yaml"), descriptors(t), b.one.Socket(), second, b.two.Socket(), blue))
	sides := map[string]*side{"red": b.one, blue: b.two}
	ctr := func(namespace string, args ...string) string { // for each containerd, the ctr of its version
		t.Helper()
		return sides[namespace].ctr(t, proxy.Socket(), append([]string{"-n", namespace}, args...)...)
	}

	// From now on, the events of both come on one stream.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := newCommand(ctx, b.two.ctrProgram(), "-a", proxy.Socket(), "events")
	stdout, err := events.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, events.Start())
	var mu sync.Mutex
	var lines []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		for all := bufio.NewScanner(stdout); all.Scan(); {
			mu.Lock()
			lines = append(lines, all.Text())
			mu.Unlock()
		}
	}()
	// told fails while an event of one of the namespaces is missing.
	told := func(topic string, namespaces ...string) error {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range namespaces {
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, " "+n+" "+topic+" ") }) {
				return fmt.Errorf("no %s in %s among %d events", topic, n, len(lines))
			}
		}
		return nil
	}
	// ctr does not report when it is subscribed.
	eventually(t, func() error {
		for name, s := range map[string]*side{"warm-red": b.one, "warm-blue": b.two} {
			s.ctr(t, s.Socket(), "namespaces", "create", name)
			s.ctr(t, s.Socket(), "namespaces", "rm", name)
		}
		return told("/namespaces/create", "warm-red", "warm-blue")
	})

	ref := b.reg.Image("testbed/app:1")
	for namespace, s := range sides {
		other := b.other(s)
		ctr(namespace, "images", "pull", "--plain-http", ref)
		assert.Equal(t, ref+"\n", ctr(namespace, "images", "ls", "-q"))
		assert.Equal(t, ref+"\n", s.ctr(t, s.Socket(), "-n", namespace, "images", "ls", "-q"), "it is on its own containerd")
		assert.Empty(t, other.ctr(t, other.Socket(), "-n", namespace, "images", "ls", "-q"), "and not on the other one")
		file := filepath.Join(t.TempDir(), "image.tar")
		ctr(namespace, "images", "export", file, ref)
		ctr(namespace, "images", "import", file)

		cgroup := s.CgroupParent() + "/ctr-" + namespace
		said := s.tryCtr(t, proxy.Socket(), "-n", namespace, "run", "--rm", "--cgroup", cgroup, ref, "run", "/bin/app", "print", "hello", "then", "exit", "7")
		assert.Equal(t, result{stdout: "hello\n", code: 7}, said)
		ctr(namespace, "run", "-d", "--cgroup", cgroup, ref, "task", "/bin/app", "sleep")
		assert.Contains(t, ctr(namespace, "tasks", "ls"), "RUNNING")
		assert.Equal(t, "task\n", s.ctr(t, s.Socket(), "-n", namespace, "containers", "ls", "-q"))
		assert.Empty(t, other.ctr(t, other.Socket(), "-n", namespace, "containers", "ls", "-q"))
		assert.Equal(t, "hi\n", ctr(namespace, "tasks", "exec", "--exec-id", "x", "task", "/bin/app", "print", "hi"))
	}
	list := ctr(blue, "namespaces", "ls", "-q")
	assert.Contains(t, list, "red\n")
	assert.Contains(t, list, blue+"\n", "namespaces of both")
	for namespace := range sides {
		ctr(namespace, "tasks", "kill", "-s", "SIGKILL", "task")
		eventually(t, func() error {
			if r := sides[namespace].tryCtr(t, proxy.Socket(), "-n", namespace, "tasks", "rm", "task"); r.code != 0 && !strings.Contains(r.stderr, "137") {
				return fmt.Errorf("%s", r.stderr)
			}
			return nil
		})
		ctr(namespace, "containers", "rm", "task")
		ctr(namespace, "images", "rm", "--sync", ref)
	}
	eventually(t, func() error { return told("/containers/delete", "red", blue) })
	require.NoError(t, told("/tasks/exit", "red", blue))
	cancel()
	<-read
	_ = events.Wait() // it was killed
	for namespace, s := range sides {
		eventually(t, func() error { // containerd collects leases and content asynchronously
			if r := s.tryCtr(t, proxy.Socket(), "namespaces", "rm", namespace); r.code != 0 {
				return fmt.Errorf("%s", r.stderr)
			}
			return nil
		})
		assert.NotContains(t, s.ctr(t, s.Socket(), "namespaces", "ls", "-q"), namespace)
	}
}
