package runtimes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// Config configures a containerd. Binaries and Registry are required; all other fields may be zero.
type Config struct {
	// Name tells instances apart in messages and in the name of their cgroup. Empty means the version.
	Name string
	// Version is "1.7", which speaks runtime.v1 and runtime.v1alpha2, or "2.4", which speaks runtime.v1.
	// Empty means "2.4".
	Version string
	// Dir is the folder for the instance's files: sockets, images, logs. Destroy removes it. Empty means
	// a new one in the temporary folder. Its path must be short, because it holds sockets.
	Dir string
	// Binaries are from build.Get: containerd of that version, runc, noseccomp and CNI.
	Binaries build.Binaries
	// Registry is the address of a Registry, from which the sandbox image testbed/pause:1 is pulled.
	Registry string
	// GVisor adds the handler "gvisor", whose pods have their own kernel. Binaries must include it.
	GVisor bool
	// Mirrors redirects pulls from a registry to an address on this machine, over HTTP: "docker.io" to
	// "127.0.0.1:5000". Registry itself needs no entry.
	Mirrors map[string]string
	// Snapshotter is "overlayfs" or "native". Empty means overlayfs if the file system of Dir supports it.
	Snapshotter string
	// ExtraTOML is merged into the configuration file, table by table. It names plugins as in a file of
	// version 2 for 1.7, and of version 4 for 2.4.
	ExtraTOML string
}

const (
	socketName   = "containerd.sock"
	manifestName = "instance.json"
)

// withDefaults checks c, fills in defaults, and makes the folder.
func (c Config) withDefaults() (Config, error) {
	c.Version = cmp.Or(c.Version, "2.4")
	if c.Version != "1.7" && c.Version != "2.4" {
		return c, fmt.Errorf("testbed: unknown containerd version %q (want 1.7 or 2.4)", c.Version)
	}
	c.Name = cmp.Or(c.Name, "containerd-"+c.Version)
	if !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`).MatchString(c.Name) {
		return c, fmt.Errorf("testbed: containerd name %q: use letters, digits, dots, dashes and underscores only", c.Name)
	}
	if c.Binaries.Containerd[c.Version] == "" || c.Binaries.Runc == "" || c.Binaries.NoSeccomp == "" || c.Binaries.CNI == "" {
		return c, fmt.Errorf("testbed: starting containerd %s: Config.Binaries lacks containerd %s, runc, noseccomp or cni (call build.Get first)", c.Name, c.Version)
	}
	if c.GVisor && c.Binaries.GVisor == "" {
		return c, fmt.Errorf("testbed: starting containerd %s: Config.Binaries lacks gvisor (name it to build.Get)", c.Name)
	}
	if c.Registry == "" {
		return c, fmt.Errorf("testbed: starting containerd %s: it needs Config.Registry", c.Name)
	}
	var err error
	c.Dir, err = host.NewDir(c.Dir, socketName+".ttrpc")
	if err != nil {
		return c, fmt.Errorf("testbed: making the folder of containerd %s: %w", c.Name, err)
	}
	if c.Snapshotter == "" {
		c.Snapshotter = "overlayfs"
		if err := host.TryOverlay(c.Dir); err != nil {
			c.Snapshotter = "native"
		}
	}
	return c, nil
}

// A manifest describes an instance to Open, for instances that another program started.
type manifest struct {
	Config Config
	Bridge string
}

func (m manifest) write() error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(m.Config.Dir, manifestName), data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("testbed: writing the instance's manifest: %w", err)
	}
	return nil
}

func readManifest(dir string) (manifest, error) {
	var m manifest
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return m, fmt.Errorf("testbed: opening the instance in %s: %w", dir, err)
	}
	return m, nil
}
