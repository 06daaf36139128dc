package runtimes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// A Containerd is a containerd with its own folders, socket, bridge and cgroup. It is a daemon: it keeps
// running when the program that started it ends, and [Open] finds it again.
//
// Containers and their shims keep running when the daemon is killed or terminated. Start starts the daemon
// again.
//
// Methods may be called from any goroutine, but only one at a time of those that change the state (Start,
// Kill, Freeze, Thaw, Terminate, Destroy).
type Containerd struct {
	Config       // with defaults; must not be changed
	host.Process // containerd itself
	bridge       string
}

// StartContainerd starts an instance and returns when it answers CRI calls. If it does not come up,
// StartContainerd removes it again, and the error holds the end of its log.
func StartContainerd(ctx context.Context, config Config) (*Containerd, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(config.Dir, manifestName)); err == nil {
		return nil, fmt.Errorf("testbed: starting containerd %s: %s already holds an instance (open it with runtimes.Open, or remove it with host.Clean)", config.Name, config.Dir)
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

// Open returns the instance in dir, running or not, which this or another program has started.
func Open(dir string) (*Containerd, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	return newContainerd(m.Config, m.Bridge), nil
}

func newContainerd(config Config, bridge string) *Containerd {
	return &Containerd{Config: config, bridge: bridge, Process: host.NewProcess("containerd "+config.Name, filepath.Join(config.Dir, "containerd"))}
}

// prepare makes everything but the process.
func (c *Containerd) prepare() error {
	for _, dir := range []string{"root", "state", "tmp", "opt", "runc", "logs"} {
		if err := os.MkdirAll(filepath.Join(c.Dir, dir), 0o711); err != nil {
			return fmt.Errorf("testbed: making the folders of %s: %w", c.Title(), err)
		}
	}
	b, err := host.ClaimBridge(c.Dir)
	if err != nil {
		return err
	}
	c.bridge = b.Name
	return errors.Join(
		writeCNI(c.Dir, b),
		writeMirrors(c.Config),
		writeGVisor(c.Config),
		writeTOML(c.Config),
		manifest{Config: c.Config, Bridge: c.bridge}.write(),
	)
}

// Start starts the daemon, or starts it again after Kill or Terminate, and returns when it answers.
func (c *Containerd) Start(ctx context.Context) error {
	bin := c.Binaries.Containerd[c.Version]
	argv := []string{filepath.Join(bin, "containerd"), "--config", filepath.Join(c.Dir, "config.toml")}
	if err := c.Process.Start(argv, c.env()); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// env returns our environment with the instance's programs first in PATH: containerd looks there for its
// shim, and the shim for runc.
func (c *Containerd) env() []string {
	path := strings.Join([]string{c.Binaries.Containerd[c.Version], filepath.Dir(c.Binaries.Runc), os.Getenv("PATH")}, ":")
	return append(host.Environ("PATH", "TMPDIR", "CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE"), "PATH="+path, "TMPDIR="+filepath.Join(c.Dir, "tmp"))
}

// Socket returns the path of the CRI socket, which is containerd's own.
func (c *Containerd) Socket() string { return filepath.Join(c.Dir, socketName) }

// Endpoint returns the socket in the form of kubelet and crictl: unix:///...
func (c *Containerd) Endpoint() string { return "unix://" + c.Socket() }

// Bridge returns the name of the bridge to which pods are attached.
func (c *Containerd) Bridge() string { return c.bridge }

// CgroupParent returns the cgroup below which all pods of the instance should be. [Containerd.PodConfig]
// puts each pod into a child of it; sandboxes that are made in other ways should be there, too.
func (c *Containerd) CgroupParent() string { return host.Cgroup(c.Name, c.Dir) }

// Ctr runs the ctr of the same version against the instance and returns its output. Images and
// containers of CRI are in the namespace k8s.io: Ctr(ctx, "-n", "k8s.io", "images", "ls"). Ctr fails
// after a minute if ctx has no deadline.
func (c *Containerd) Ctr(ctx context.Context, args ...string) (string, error) {
	cmd := host.Command(ctx, filepath.Join(c.Binaries.Containerd[c.Version], "ctr"), append([]string{"-a", c.Socket()}, args...)...)
	cmd.Env = c.env()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("testbed: running ctr %s on containerd %s: %w: %s",
			strings.Join(args, " "), c.Name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Upgrade ends the daemon, and starts that of another version on the same folders. Containers go on meanwhile.
func (c *Containerd) Upgrade(ctx context.Context, version string) error {
	binaries, err := build.Get(ctx, nil, build.ForContainerd(version)...)
	if err == nil {
		err = c.Terminate(ctx)
	}
	if err != nil {
		return err
	}
	c.Version, c.Binaries.Containerd = version, binaries.Containerd
	if err := errors.Join(writeTOML(c.Config), manifest{Config: c.Config, Bridge: c.bridge}.write()); err != nil {
		return err
	}
	return c.Start(ctx)
}
