package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A takenOver is a containerd whose socket path criproxy takes over and gives back.
type takenOver struct {
	testing.TB
	*runtimes.Containerd
	program, dir, config string
	cmd                  *exec.Cmd // nil while it does not run
}

// prepare runs install or uninstall, which change the files.
func (o *takenOver) prepare(args ...string) {
	o.Helper()
	r := command(o, o.program, append(args, "-containerd-config", filepath.Join(o.Dir, "config.toml"), "-config", o.config)...)
	require.Zero(o, r.code, r.stdout+r.stderr)
}

// restart restarts containerd, and starts or stops criproxy.
func (o *takenOver) restart(criproxy bool) {
	o.Helper()
	require.NoError(o, o.Terminate(o.Context()))
	if o.cmd != nil {
		require.NoError(o, o.cmd.Process.Signal(unix.SIGTERM))
		require.NoError(o, o.cmd.Wait())
		o.cmd = nil
	}
	if criproxy {
		log, err := os.OpenFile(filepath.Join(o.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		require.NoError(o, err)
		defer log.Close()
		o.cmd = exec.Command(o.program, "-logtostderr", "-config", o.config)
		o.cmd.Stdout, o.cmd.Stderr = log, log
		require.NoError(o, o.cmd.Start())
	}
	require.NoError(o, o.Start(o.Context()), "and it answers at the path where it did")
}

// server returns the process that serves containerd's path.
func (o *takenOver) server() int {
	o.Helper()
	conn, err := net.Dial("unix", o.Socket())
	require.NoError(o, err)
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	require.NoError(o, err)
	var cred *unix.Ucred
	require.NoError(o, raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }))
	require.NoError(o, err)
	return int(cred.Pid)
}

// All clients of containerd's socket keep working: kubelet's client, crictl, ctr and nerdctl, with objects from before
// and after, and over restarts of containerd, which does not take its path back.
func TestCriproxyTakesContainerdsSocketAndLeavesIt(t *testing.T) {
	program := criproxy(t)
	reg := testbed.NewRegistry(t)
	for _, version := range []string{"1.7", "2.4"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			c := testbed.NewContainerd(t, reg, runtimes.Config{Version: version})
			dir, err := os.MkdirTemp("", "takeover-") // t.TempDir is too long for a socket
			require.NoError(t, err)
			o := &takenOver{TB: t, Containerd: c, program: program, dir: dir, config: filepath.Join(dir, "config.yaml")}
			t.Cleanup(func() {
				if o.cmd != nil {
					_ = o.cmd.Process.Kill() // the test has failed
					_ = o.cmd.Wait()
				}
				os.RemoveAll(dir)
			})
			ours := fmt.Sprintf("listen: %s/c.sock\nadmin: %[1]s/a.sock\nstateDir: none\nhooks: none\nbackends:\n- address: %s\n", dir, c.Socket())
			require.NoError(t, os.WriteFile(o.config, []byte(ours), 0o600))
			theirs, err := os.ReadFile(filepath.Join(c.Dir, "config.toml"))
			require.NoError(t, err)

			n := newNerdctl(t, c, reg, dir)
			// Without a log: nerdctl's logger ends with its connection to containerd, so with each restart of containerd.
			n.start("own", "--log-driver", "none")
			own := n.pid("own")
			ref := reg.Image("testbed/app:1")
			runtime, images := kubelet(t, c.Socket())
			run := func(name string) (pod, container string) {
				config := runtimes.OnHostNetwork(c.PodConfig(name))
				_, err := images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: ref}, nil, config)
				require.NoError(t, err)
				pod, err = runtime.RunPodSandbox(t.Context(), config, "")
				require.NoError(t, err)
				container, err = runtime.CreateContainer(t.Context(), pod, runtimes.ContainerConfig("app", ref, "sleep"), config)
				require.NoError(t, err)
				require.NoError(t, runtime.StartContainer(t.Context(), container))
				return pod, container
			}
			works := func(containers ...string) {
				t.Helper()
				runtime, images = kubelet(t, c.Socket())
				for _, id := range containers {
					stdout, _, err := runtime.ExecSync(t.Context(), id, []string{"app", "print", "here"}, 20*time.Second)
					require.NoError(t, err)
					assert.Equal(t, "here\n", string(stdout))
					said, err := c.Ctr(t.Context(), "-n", "k8s.io", "containers", "info", id)
					require.NoError(t, err)
					assert.Contains(t, said, id)
				}
				r := command(t, testbed.Require(t, build.Crictl).Crictl, "--runtime-endpoint", c.Endpoint(), "--timeout", "30s", "ps", "-q", "--no-trunc")
				require.Zero(t, r.code, r.stderr)
				for _, id := range containers {
					assert.Contains(t, r.stdout, id)
					assert.Contains(t, n.do("ps", "-q", "--no-trunc"), id)
				}
				n.lives("own")
				assert.Equal(t, own, n.pid("own"))
			}
			_, before := run("before")

			o.prepare("install", "-takeover", c.Socket())
			o.restart(true)
			assert.Equal(t, o.cmd.Process.Pid, o.server(), "criproxy serves the path")
			works(before)
			_, after := run("after")
			works(before, after)
			n.wholeLife()

			// containerd notices the end of a container: the shim still finds containerd.
			status, err := runtime.ContainerStatus(t.Context(), before, true)
			require.NoError(t, err)
			_, err = c.Ctr(t.Context(), "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", status.Status.Id)
			require.NoError(t, err)
			eventually(t, func() error {
				status, err := runtime.ContainerStatus(t.Context(), before, false)
				if err == nil && status.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED {
					err = fmt.Errorf("it is %s", status.Status.State)
				}
				return err
			})

			require.NoError(t, c.Kill())
			require.NoError(t, c.Start(t.Context()))
			assert.Equal(t, o.cmd.Process.Pid, o.server(), "containerd does not take its path back")
			works(after)

			o.prepare("uninstall")
			o.restart(false)
			pid, _ := c.PID()
			assert.Equal(t, pid, o.server())
			works(after)
			n.do("rm", "-f", "own")
			now, err := os.ReadFile(filepath.Join(c.Dir, "config.toml"))
			require.NoError(t, err)
			assert.Equal(t, string(theirs), string(now))
			now, err = os.ReadFile(o.config)
			require.NoError(t, err)
			assert.Equal(t, ours, string(now))
		})
	}
}
