package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A result is the result of a command.
type result struct {
	stdout, stderr string
	code           int
}

// command runs a program with empty standard input.
func command(t testing.TB, program string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	cmd := newCommand(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func newCommand(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=true") // the warnings contain the time
	cmd.WaitDelay = time.Second
	return cmd
}

// ctr runs the runtime's own ctr with any socket; it must succeed.
func (s *side) ctr(t testing.TB, socket string, args ...string) string {
	t.Helper()
	r := s.tryCtr(t, socket, args...)
	require.Zero(t, r.code, "ctr %s: %s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout
}

func (s *side) tryCtr(t testing.TB, socket string, args ...string) result {
	t.Helper()
	return command(t, s.ctrProgram(), append([]string{"-a", socket}, args...)...)
}

func (s *side) ctrProgram() string {
	return filepath.Join(s.Binaries.Containerd[s.Containerd.Version], "ctr")
}

// containerd's own API is on the same socket as CRI. criproxy forwards it to the primary unchanged: streams in both
// directions, metadata that names the namespace, and everything else that ctr does.
func TestCtrWorksThroughTheProxy(t *testing.T) {
	b := start(t)
	for _, s := range b.sides() {
		t.Run(s.Containerd.Version, func(t *testing.T) {
			proxy := b.proxy
			if s != b.one { // the primary
				proxy = inFrontOf(t, s.Socket(), b.one.Socket())
			}
			has := run(t, s.client, &side{Containerd: s.Containerd, client: s.client, reg: s.reg}, "ctr")
			pod := has.back(t)
			for _, args := range [][]string{
				{"version"}, {"namespaces", "ls"}, {"plugins", "ls"}, {"-n", "k8s.io", "images", "ls"}, {"-n", "k8s.io", "images", "ls", "-q"},
				{"-n", "k8s.io", "containers", "ls"}, {"-n", "k8s.io", "containers", "info", pod}, {"-n", "k8s.io", "tasks", "ls"},
				{"-n", "k8s.io", "snapshots", "ls"}, {"-n", "k8s.io", "content", "ls", "-q"}, {"-n", "k8s.io", "leases", "ls"},
			} {
				// containerd's garbage collection can remove things between two answers: an answer counts only between two equal ones.
				var got string
				want := s.ctr(t, s.Socket(), args...)
				eventually(t, func() error {
					before := want
					got = s.ctr(t, proxy.Socket(), args...)
					if want = s.ctr(t, s.Socket(), args...); !slices.Equal(sorted(before), sorted(want)) {
						return errors.New("ctr " + strings.Join(args, " ") + ": containerd itself answers differently each time")
					}
					return nil
				})
				assert.Equal(t, sorted(want), sorted(got), "ctr %s", strings.Join(args, " "))
				assert.NotEmpty(t, got)
			}
			failure := []string{"-n", "k8s.io", "containers", "info", "none"}
			assert.Equal(t, s.tryCtr(t, s.Socket(), failure...), s.tryCtr(t, proxy.Socket(), failure...))

			t.Run("images", func(t *testing.T) {
				const namespace = "through"
				ref := s.reg.Image("testbed/app:1")
				s.ctr(t, proxy.Socket(), "-n", namespace, "images", "pull", "--plain-http", ref)
				assert.Equal(t, ref+"\n", s.ctr(t, s.Socket(), "-n", namespace, "images", "ls", "-q"))
				dir := t.TempDir()
				exports := map[string]string{s.Socket(): filepath.Join(dir, "direct.tar"), proxy.Socket(): filepath.Join(dir, "through.tar")}
				// The order of an export's content varies, with and without us.
				eventually(t, func() error {
					var all [][]byte
					for socket, file := range exports {
						s.ctr(t, socket, "-n", namespace, "images", "export", file, ref)
						data, err := os.ReadFile(file)
						require.NoError(t, err)
						require.Greater(t, len(data), 100_000)
						all = append(all, data)
					}
					if !bytes.Equal(all[0], all[1]) {
						return errors.New("the exported images are not the same, byte for byte")
					}
					return nil
				})

				s.ctr(t, proxy.Socket(), "-n", "imported", "images", "import", exports[proxy.Socket()])
				digests := func(namespace string) []string {
					return strings.Fields(s.ctr(t, s.Socket(), "-n", namespace, "images", "ls"))
				}
				assert.Equal(t, digests(namespace), digests("imported"))
				for _, namespace := range []string{namespace, "imported"} {
					s.ctr(t, proxy.Socket(), "-n", namespace, "images", "rm", "--sync", ref)
					assert.Empty(t, s.ctr(t, s.Socket(), "-n", namespace, "images", "ls", "-q"))
				}
			})

			t.Run("containers", func(t *testing.T) {
				const namespace = "k8s.io" // the testbed removes its cgroup
				ref := s.reg.Image("testbed/app:1")
				s.ctr(t, proxy.Socket(), "-n", namespace, "images", "pull", "--plain-http", ref)
				cgroup := func(id string) string { return s.CgroupParent() + "/ctr-" + id }
				said := s.tryCtr(t, proxy.Socket(), "-n", namespace, "run", "--rm", "--cgroup", cgroup("rm"), ref, "rm",
					"/bin/app", "print", "hello", "then", "warn", "careful", "then", "exit", "7")
				assert.Equal(t, result{stdout: "hello\n", stderr: "careful\n", code: 7}, said)
				assert.NotContains(t, s.ctr(t, s.Socket(), "-n", namespace, "containers", "ls", "-q"), "rm\n", "--rm has removed it")

				// Killed in the end: ctr itself does not always forward the end of its standard input.
				ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
				defer cancel()
				talk := newCommand(ctx, s.ctrProgram(), "-a", proxy.Socket(), "-n", namespace, "run", "--rm", "--cgroup", cgroup("talk"), ref, "talk", "/bin/app", "cat")
				stdin, err := talk.StdinPipe()
				require.NoError(t, err)
				stdout, err := talk.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, talk.Start())
				for _, words := range []string{"to and fro\n", "\x00\xff", strings.Repeat("long ", 10000)} {
					_, err = io.WriteString(stdin, words)
					require.NoError(t, err)
					echo := make([]byte, len(words))
					_, err = io.ReadFull(stdout, echo)
					require.NoError(t, err)
					assert.Equal(t, words, string(echo))
				}
				s.ctr(t, proxy.Socket(), "-n", namespace, "tasks", "kill", "-s", "SIGTERM", "talk")
				rest, err := io.ReadAll(stdout)
				require.NoError(t, err)
				assert.Empty(t, rest)
				assert.NoError(t, talk.Wait(), "it ends well at SIGTERM")

				s.ctr(t, proxy.Socket(), "-n", namespace, "run", "-d", "--cgroup", cgroup("task"), ref, "task", "/bin/app", "sleep")
				assert.Contains(t, s.ctr(t, s.Socket(), "-n", namespace, "containers", "ls", "-q"), "task\n")
				assert.Contains(t, s.ctr(t, s.Socket(), "-n", namespace, "tasks", "ls"), "RUNNING")
				assert.Equal(t, "hello\n", s.ctr(t, proxy.Socket(), "-n", namespace, "tasks", "exec", "--exec-id", "x", "task", "/bin/app", "print", "hello"))
				s.ctr(t, proxy.Socket(), "-n", namespace, "tasks", "kill", "-s", "SIGKILL", "task")
				eventually(t, func() error {
					if r := s.tryCtr(t, proxy.Socket(), "-n", namespace, "tasks", "rm", "task"); r.code != 0 && !strings.Contains(r.stderr, "137") {
						return errors.New(r.stderr)
					}
					return nil
				})
				s.ctr(t, proxy.Socket(), "-n", namespace, "containers", "rm", "task")
				assert.NotContains(t, s.ctr(t, s.Socket(), "-n", namespace, "containers", "ls", "-q"), "task\n")
			})
		})
	}
}

// sorted returns the sorted lines of text, because some lists have no order.
func sorted(text string) []string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return lines
}
