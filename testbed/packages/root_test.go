package packages

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
)

// patience bounds how long a test waits for an event.
const patience = 30 * time.Second

// needs skips the test if a program is missing.
func needs(t testing.TB, programs ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: packages take their time to build (-short)")
	}
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if os.Getuid() != 0 {
		missing = append(missing, "root")
	}
	if len(missing) == 0 {
		return
	}
	untested.Skip(t, "packages cannot be tried here without "+strings.Join(missing, ", ")+
		" (apt-get install dpkg rpm busybox-static systemd qemu-user-static)")
}

// versions are two versions of criproxy, the newer one second.
var versions = [2]string{"0.0.1", "0.0.2"}

// dirs hold the packages of each version, once they are built.
var dirs [2]string

var buildPackages = sync.OnceValue(func() (err error) {
	for i, v := range versions {
		if dirs[i], err = os.MkdirTemp("", "criproxy-packages-"); err != nil {
			return err
		}
		if err := build.Packages(context.Background(), v, runtime.GOARCH, dirs[i], "deb", "rpm"); err != nil {
			return err
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	testbed.Limit = 14 * time.Minute
	testbed.Main(suite{m})
}

type suite struct{ m *testing.M }

// Run runs all tests, and removes what they have built.
func (s suite) Run() int {
	code := s.m.Run()
	for _, dir := range dirs {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	return code
}

// file returns the only package with the given extension, of version 0 or 1.
func file(t testing.TB, version int, ending string) string {
	t.Helper()
	require.NoError(t, buildPackages())
	return one(t, dirs[version], "*."+ending)
}

// A root is a folder that a package manager uses as a whole machine: it has a shell and the programs for maintainer
// scripts, all from busybox, and a systemctl that records its arguments.
type root struct {
	testing.TB
	dir string
}

// newRoot makes a root; systemd says whether systemd seems to run there.
func newRoot(t testing.TB, systemd bool) *root {
	t.Helper()
	dir, err := os.MkdirTemp("", "root-")
	require.NoError(t, err)
	r := &root{TB: t, dir: dir}
	t.Cleanup(func() {
		unix.Unmount(r.at("/proc"), unix.MNT_DETACH) // it may not have been mounted
		require.NoError(t, os.RemoveAll(dir))
	})
	for _, d := range []string{"/bin", "/proc", "/run", "/tmp", "/var/lib/dpkg/updates", "/var/lib/dpkg/info", "/usr/bin"} {
		require.NoError(t, os.MkdirAll(r.at(d), 0o755))
	}
	busybox, err := exec.LookPath("busybox")
	require.NoError(t, err)
	data, err := os.ReadFile(busybox)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(r.at("/bin/busybox"), data, 0o755))
	for _, name := range []string{"sh", "cat", "kill", "rm", "rmdir", "readlink", "echo"} {
		require.NoError(t, os.Symlink("busybox", r.at("/bin/"+name)))
	}
	require.NoError(t, unix.Mount("proc", r.at("/proc"), "proc", 0, ""))
	require.NoError(t, os.Mkdir(r.at("/dev"), 0o755))
	require.NoError(t, unix.Mknod(r.at("/dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	r.write("/var/lib/dpkg/status", "")
	r.write("/usr/bin/systemctl", "#!/bin/sh\necho \"$*\" >> /systemctl.log\n[ \"$1\" != show ] || cat /main.pid\n")
	require.NoError(t, os.Chmod(r.at("/usr/bin/systemctl"), 0o755))
	r.write("/main.pid", "0\n")
	if systemd {
		require.NoError(t, os.MkdirAll(r.at("/run/systemd/system"), 0o755))
	}
	return r
}

func (r *root) at(path string) string { return filepath.Join(r.dir, path) }

func (r *root) write(path, text string) {
	r.Helper()
	require.NoError(r, os.WriteFile(r.at(path), []byte(text), 0o644))
}

func (r *root) read(path string) string {
	r.Helper()
	data, err := os.ReadFile(r.at(path))
	require.NoError(r, err)
	return string(data)
}

// told returns the arguments of systemctl since the last call of told.
func (r *root) told() []string {
	data, _ := os.ReadFile(r.at("/systemctl.log")) // missing if it was never called
	os.Remove(r.at("/systemctl.log"))
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// run runs a program of the machine, which must succeed.
func (r *root) run(program string, args ...string) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	require.NoError(r, err, "%s %s\n%s", program, strings.Join(args, " "), out)
	return string(out)
}

// serveContainerd makes this process look like a containerd that serves its usual socket, until the test ends.
func (r *root) serveContainerd() {
	r.Helper()
	const path, name = "/run/containerd/containerd.sock", "/proc/self/comm"
	require.NoError(r, os.MkdirAll(filepath.Dir(r.at(path)), 0o755))
	l, err := net.Listen("unix", r.at(path))
	require.NoError(r, err)
	was, err := os.ReadFile(name)
	require.NoError(r, err)
	require.NoError(r, os.WriteFile(name, []byte("containerd"), 0))
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = fakecri.New(fakecri.Config{Name: "containerd"}).ServeOn(ctx, l) })
	r.Cleanup(func() {
		stop()
		serving.Wait()
		assert.NoError(r, os.WriteFile(name, bytes.TrimSpace(was), 0))
	})
}

// start starts the installed criproxy, with the installed configuration, and returns when it serves.
func (r *root) start() {
	r.Helper()
	var log bytes.Buffer
	cmd := exec.Command("/usr/bin/criproxy", "-logtostderr", "-config", "/etc/criproxy/config.yaml")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &log, &log
	require.NoError(r, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed, or hands over
		close(ended)
	}()
	r.Cleanup(func() {
		if v, err := r.serving(); err == nil {
			_ = syscall.Kill(v.PID, syscall.SIGKILL) // it can only be the test's own
		}
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if r.Failed() {
			r.Log(log.String())
		}
	})
	v := r.waitServing(func(v running) bool { return v.PID == cmd.Process.Pid })
	r.write("/main.pid", fmt.Sprintln(v.PID))
}

// A running describes the criproxy that serves.
type running struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

// serving makes a request on the admin socket. It works during clean-up, too, when the test's own context has ended.
func (r *root) serving() (v running, err error) {
	err = proxy.AskJSON(context.Background(), r.at("/run/criproxy.admin.sock"), "/version", &v)
	return v, err
}

// waitServing waits until the serving criproxy meets a condition, and returns it.
func (r *root) waitServing(wanted func(running) bool) (v running) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	require.NoError(r, host.Await(ctx, "another criproxy to serve", func() (err error) {
		if v, err = r.serving(); err == nil && !wanted(v) {
			err = fmt.Errorf("%+v serves", v)
		}
		return err
	}))
	return v
}
