package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/table"
)

// CRIOConfig configures a CRI-O. Binaries and Registry are required; all other fields may be zero.
type CRIOConfig struct {
	// Name tells instances apart in messages and in the name of their cgroup. Empty means crio.
	Name string
	// Dir is the folder for the instance's files, as in [Config].
	Dir string
	// Binaries are from build.Get: CRIO, runc, noseccomp and CNI.
	Binaries build.Binaries
	// Registry is the address of a Registry, from which the sandbox image is pulled.
	Registry string
	// Mirrors redirects pulls from a registry to an address on this machine, as in [Config].
	Mirrors map[string]string
}

// A CRIO is a CRI-O with its own folders, socket, bridge and cgroup. It also serves HTTP on its CRI socket. Its methods
// are like those of [Containerd].
type CRIO struct {
	CRIOConfig
	host.Process
	bridge string
}

// CRIORequirements returns what this machine lacks to run CRI-O, in addition to the needs of containerd.
func CRIORequirements() []error {
	if _, err := exec.LookPath("conmon"); err != nil {
		return []error{errors.New("testbed: no conmon in PATH, which watches CRI-O's containers (apt-get install conmon)")}
	}
	return nil
}

// StartCRIO starts an instance and returns when it answers CRI calls, like StartContainerd.
func StartCRIO(ctx context.Context, config CRIOConfig) (*CRIO, error) {
	if config.Name == "" {
		config.Name = "crio"
	}
	if config.Binaries.CRIO == "" || config.Binaries.Runc == "" || config.Binaries.NoSeccomp == "" || config.Binaries.CNI == "" {
		return nil, fmt.Errorf("testbed: starting %s: CRIOConfig.Binaries lacks crio, runc, noseccomp or cni (call build.Get first)", config.Name)
	}
	var err error
	if config.Dir, err = host.NewDir(config.Dir, "crio.sock"); err != nil {
		return nil, fmt.Errorf("testbed: making the folder of %s: %w", config.Name, err)
	}
	c := &CRIO{CRIOConfig: config, Process: host.NewProcess("CRI-O "+config.Name, filepath.Join(config.Dir, "crio"))}
	if err = c.prepare(); err == nil {
		err = c.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Destroy(ctx))
	}
	return c, nil
}

// prepare makes everything but the process.
func (c *CRIO) prepare() error {
	for _, dir := range []string{"logs", "dropins", "exits", "attach", "ns", "hooks", "tmp"} {
		if err := os.MkdirAll(c.at(dir), 0o711); err != nil {
			return fmt.Errorf("testbed: making the folders of %s: %w", c.Title(), err)
		}
	}
	b, err := host.ClaimBridge(c.Dir)
	if err != nil {
		return err
	}
	c.bridge = b.Name
	config, err := toml.Marshal(c.config())
	if err != nil {
		return fmt.Errorf("testbed: encoding CRI-O's configuration: %w", err)
	}
	registries := fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", c.Registry)
	for name, addr := range c.Mirrors {
		registries += fmt.Sprintf("[[registry]]\nlocation = %q\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", name, addr)
	}
	for name, content := range map[string]string{
		"crio.conf": string(config), "registries.conf": registries, "policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`,
	} {
		if err := os.WriteFile(c.at(name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("testbed: writing %s of %s: %w", name, c.Title(), err)
		}
	}
	return writeCNI(c.Dir, b)
}

func (c *CRIO) at(name string) string { return filepath.Join(c.Dir, name) }

// config returns CRI-O's configuration, by which all its files are in the folder.
func (c *CRIO) config() table.Table {
	return table.Table{"crio": table.Table{
		"root": c.at("storage"), "runroot": c.at("run"), "storage_driver": "overlay", "log_dir": c.at("logs"),
		"version_file": c.at("version"), "version_file_persist": c.at("version-persist"), "clean_shutdown_file": c.at("clean.shutdown"),
		"api": table.Table{"listen": c.Socket()},
		"runtime": table.Table{
			"cgroup_manager": "cgroupfs", "conmon_cgroup": "pod",
			"pinns_path": filepath.Join(c.Binaries.CRIO, "pinns"), "namespaces_dir": c.at("ns"),
			"container_exits_dir": c.at("exits"), "container_attach_socket_dir": c.at("attach"), "hooks_dir": []string{c.at("hooks")},
			"decryption_keys_path": c.at("keys"), "irqbalance_config_file": "", "irqbalance_config_restore_file": "disable",
			"apparmor_profile": "unconfined", "enable_criu_support": false,
			"disable_hostport_mapping": true, // it needs iptables
			"default_runtime":          "runc",
			"runtimes": table.Table{"runc": table.Table{
				"runtime_path": c.Binaries.NoSeccomp, "runtime_root": c.at("runc"), "monitor_cgroup": "pod",
				// Where noseccomp finds runc.
				"monitor_env": []string{"PATH=" + filepath.Dir(c.Binaries.Runc) + ":" + os.Getenv("PATH")},
			}},
		},
		"image": table.Table{
			"pause_image": c.Registry + "/testbed/pause:1", "pause_command": "",
			"signature_policy": c.at("policy.json"), "signature_policy_dir": c.at("policies"),
		},
		"network": table.Table{"network_dir": filepath.Join(c.Dir, "cni", "net.d"), "plugin_dirs": []string{c.Binaries.CNI}},
		"metrics": table.Table{"enable_metrics": false},
		"nri":     table.Table{"enable_nri": false},
	}}
}

// Start starts the daemon, or starts it again after Kill or Terminate, and returns when it answers.
func (c *CRIO) Start(ctx context.Context) error {
	env := append(host.Environ("PATH", "TMPDIR"), "TMPDIR="+c.at("tmp"), "PATH="+filepath.Dir(c.Binaries.Runc)+":"+os.Getenv("PATH"))
	argv := []string{filepath.Join(c.Binaries.CRIO, "crio"), "-c", c.at("crio.conf"), "-d", c.at("dropins"),
		"--registries-conf", c.at("registries.conf"), "--registries-conf-dir", c.at("dropins")}
	if err := c.Process.Start(argv, env); err != nil {
		return err
	}
	return WaitReady(ctx, c.Process, c.Socket())
}

// Socket returns the path of the socket for CRI and HTTP.
func (c *CRIO) Socket() string { return c.at("crio.sock") }

// Endpoint returns the socket in the form of kubelet and crictl: unix:///...
func (c *CRIO) Endpoint() string { return "unix://" + c.Socket() }

// Destroy removes the instance, like [Containerd.Destroy].
func (c *CRIO) Destroy(ctx context.Context) error {
	if _, alive := c.PID(); alive {
		c.Thaw()
		_ = RemovePods(ctx, c.Endpoint(), func(string) bool { return true }) // Clean removes what is left
		stop, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		c.Terminate(stop)
	}
	return host.Clean(c.Dir)
}
