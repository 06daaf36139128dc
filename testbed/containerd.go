package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Containerd is one running containerd with everything that is its own: folders, socket, bridge,
// cgroup. It is a daemon: it goes on when the program that started it ends, and [Open] finds it again.
//
// Methods may be called from any goroutine, but those that change its state (Start, Kill, Freeze, Thaw,
// Terminate, Destroy) one at a time.
type Containerd struct {
	Config  // as it was started, defaults filled in; not to be changed
	process Process
	bridge  string
}

// StartContainerd starts an instance and returns when it answers CRI calls. When it does not come up,
// what was made is taken away again, and the error holds the end of its log.
func StartContainerd(ctx context.Context, config Config) (*Containerd, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(config.Dir, manifestName)); err == nil {
		return nil, fmt.Errorf("testbed: starting containerd %s: %s holds an instance already (open it with testbed.Open, or remove it with testbed.Clean)", config.Name, config.Dir)
	}
	c := newContainerd(config, "")
	if err = c.prepare(); err == nil {
		err = c.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Destroy(ctx))
	}
	return c, nil
}

// Open returns the instance in dir that this or another program started, running or not.
func Open(dir string) (*Containerd, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	return newContainerd(m.Config, m.Bridge), nil
}

func newContainerd(config Config, bridge string) *Containerd {
	return &Containerd{Config: config, bridge: bridge, process: Process{
		Name:    "containerd " + config.Name,
		PidFile: filepath.Join(config.Dir, "containerd.pid"),
		LogFile: filepath.Join(config.Dir, "containerd.log"),
	}}
}

// prepare makes everything but the process.
func (c *Containerd) prepare() error {
	for _, dir := range []string{"root", "state", "tmp", "opt", "runc", "logs"} {
		if err := os.MkdirAll(filepath.Join(c.Dir, dir), 0o711); err != nil {
			return fmt.Errorf("testbed: making the folders of %s: %w", c.process.Name, err)
		}
	}
	b, err := claimBridge(c.Dir)
	if err != nil {
		return err
	}
	c.bridge = b.name
	return errors.Join(
		writeCNI(c.Dir, b),
		writeMirrors(c.Config),
		writeTOML(c.Config),
		manifest{Config: c.Config, Bridge: c.bridge}.write(),
	)
}

// Start starts the daemon, the first time or again after Kill or Terminate, and returns when it answers.
func (c *Containerd) Start(ctx context.Context) error {
	bin := c.Binaries.Containerd[c.Version]
	argv := []string{filepath.Join(bin, "containerd"), "--config", filepath.Join(c.Dir, "config.toml")}
	if err := c.process.Start(argv, c.env()); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// env is our environment with the instance's own programs in front of the machine's: containerd looks
// for its shim and the shim for runc in PATH.
func (c *Containerd) env() []string {
	path := strings.Join([]string{c.Binaries.Containerd[c.Version], filepath.Dir(c.Binaries.Runc), os.Getenv("PATH")}, ":")
	return append(cleanEnviron("PATH", "TMPDIR", "CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE"), "PATH="+path, "TMPDIR="+filepath.Join(c.Dir, "tmp"))
}

// cleanEnviron is our environment without the variables in drop, and without what would change how a daemon
// starts or where it reports.
func cleanEnviron(drop ...string) []string {
	drop = append(drop, "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "GODEBUG", "GOTRACEBACK")
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, name) || strings.HasPrefix(name, "OTEL_")
	})
}

// Socket returns the path of the CRI socket, which is containerd's own.
func (c *Containerd) Socket() string { return filepath.Join(c.Dir, socketName) }

// Endpoint returns the socket as kubelet and crictl want it: unix:///...
func (c *Containerd) Endpoint() string { return "unix://" + c.Socket() }

// LogFile returns the path of containerd's log, which goes on over restarts.
func (c *Containerd) LogFile() string { return c.process.LogFile }

// LogLines returns the lines of its log, from offset on, that have all of words in them, and where the log ends now.
func (c *Containerd) LogLines(offset int64, words ...string) (lines []string, end int64, err error) {
	return grep(c.LogFile(), offset, words...)
}

// Bridge returns the name of the link that pods are plugged into.
func (c *Containerd) Bridge() string { return c.bridge }

// CgroupParent returns the cgroup that all pods of the instance should lie below. [Containerd.PodConfig]
// puts each pod into a child of it; who makes sandboxes by other means should too.
func (c *Containerd) CgroupParent() string { return cgroupParent(c.Name, c.Dir) }

func cgroupParent(name, dir string) string {
	return fmt.Sprintf("%s/%s-%08x", cgroupRoot, name, hash(dir))
}

// PID returns the process id of the daemon, and whether it lives. A frozen one does.
func (c *Containerd) PID() (int, bool) { return c.process.PID() }

// Kill ends the daemon with SIGKILL, as a crash would, and returns when it is gone. Containers and their
// shims live on. Start brings it back.
func (c *Containerd) Kill() error { return c.process.Kill() }

// Terminate ends the daemon with SIGTERM, as systemd would, and returns when it is gone. Containers and
// their shims live on.
func (c *Containerd) Terminate(ctx context.Context) error { return c.process.Terminate(ctx) }

// Freeze stops the daemon with SIGSTOP: connections to its socket succeed, and nothing answers.
func (c *Containerd) Freeze() error { return c.process.Freeze() }

// Thaw ends a Freeze.
func (c *Containerd) Thaw() error { return c.process.Thaw() }

// Ctr runs the ctr of the same version against the instance and returns what it printed. Images and
// containers of CRI are in the namespace k8s.io: Ctr(ctx, "-n", "k8s.io", "images", "ls").
func (c *Containerd) Ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Binaries.Containerd[c.Version], "ctr"), append([]string{"-a", c.Socket()}, args...)...)
	cmd.Env = c.env()
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("testbed: running ctr %s on containerd %s: %w: %s",
			strings.Join(args, " "), c.Name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
