package runtimes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"

	"github.com/pelletier/go-toml/v2"

	"github.com/criproxy/criproxy/testbed/internal/table"
)

// containerdTOML returns the configuration of an instance. The two lines of containerd differ in the names
// of the plugins into which CRI was split.
func containerdTOML(c Config) table.Table {
	at := func(parts ...string) string { return filepath.Join(append([]string{c.Dir}, parts...)...) }
	pause := c.Registry + "/testbed/pause:1"
	images := table.Table{"snapshotter": c.Snapshotter}
	runtimes := table.Table{}
	for _, handler := range []string{"runc", "alt"} { // both are runc
		runtimes[handler] = table.Table{
			"runtime_type": "io.containerd.runc.v2",
			"options": table.Table{
				"BinaryName": c.Binaries.NoSeccomp, // executes the runc in PATH
				"Root":       at("runc"),           // not /run/containerd/runc, which all containerds share
			},
		}
	}
	if c.GVisor {
		runtimes["gvisor"] = table.Table{
			"runtime_type": "io.containerd.runsc.v1",
			"runtime_path": filepath.Join(c.Binaries.GVisor, "shim"),
			"options":      table.Table{"TypeUrl": "io.containerd.runsc.v1.options", "ConfigPath": at(gvisorConfig)},
		}
	}
	service := table.Table{
		"restrict_oom_score_adj":       true, // sandboxes use -998, which needs CAP_SYS_RESOURCE
		"disable_hugetlb_controller":   true, // some kernels lack it
		"disable_apparmor":             true, // it would leave a profile in the kernel
		"netns_mounts_under_state_dir": true, // not /var/run/netns
	}
	cni := table.Table{"conf_dir": at("cni", "net.d")}
	containerd := table.Table{"default_runtime_name": "runc", "runtimes": runtimes}
	streaming := table.Table{"stream_server_address": "127.0.0.1", "stream_server_port": "0"}
	registry := table.Table{"config_path": at("certs.d")}

	plugins := table.Table{
		"io.containerd.internal.v1.opt": table.Table{"path": at("opt")},
		"io.containerd.nri.v1.nri":      table.Table{"disable": true},
	}
	config := table.Table{
		"root": at("root"), "state": at("state"), "temp": at("tmp"),
		"plugins": plugins,
		"debug":   table.Table{"level": "info"},
		"imports": []string{}, // not /etc/containerd/conf.d
	}
	switch c.Version {
	case "1.7":
		config["version"] = 2
		config["grpc"] = table.Table{"address": at(socketName)}
		maps.Copy(service, streaming)
		service["sandbox_image"] = pause
		cni["bin_dir"] = c.Binaries.CNI
		maps.Copy(containerd, images)
		service["cni"], service["containerd"], service["registry"] = cni, containerd, registry
		plugins["io.containerd.grpc.v1.cri"] = service
	default:
		config["version"] = 4
		plugins["io.containerd.server.v1.grpc"] = table.Table{"address": at(socketName)}
		plugins["io.containerd.server.v1.ttrpc"] = table.Table{"address": at(socketName + ".ttrpc")}
		plugins["io.containerd.grpc.v1.cri"] = streaming
		images["registry"] = registry
		images["pinned_images"] = table.Table{"sandbox": pause}
		plugins["io.containerd.cri.v1.images"] = images
		if c.Snapshotter != "overlayfs" {
			// Pulls go through the transfer service, which unpacks only for the default snapshotter.
			plugins["io.containerd.transfer.v1.local"] = table.Table{"unpack_config": []any{
				table.Table{"platform": "linux/" + runtime.GOARCH, "snapshotter": c.Snapshotter},
			}}
		}
		cni["bin_dirs"] = []string{c.Binaries.CNI}
		service["cni"], service["containerd"] = cni, containerd
		plugins["io.containerd.cri.v1.runtime"] = service
		if dir := at("s"); len(dir) <= maxShimSocketDir {
			plugins["io.containerd.shim.v1.manager"] = table.Table{"socket_dir": dir}
		}
	}
	return config
}

// maxShimSocketDir is the longest path that containerd 2.4 allows: it appends a hash of 64 letters.
const maxShimSocketDir = 42

// gvisorConfig is the file that gVisor's shim reads.
const gvisorConfig = "gvisor.toml"

// writeGVisor writes the configuration of gVisor, so that pods do not need KVM.
func writeGVisor(c Config) error {
	if !c.GVisor {
		return nil
	}
	data, err := toml.Marshal(table.Table{
		"binary_name":  filepath.Join(c.Binaries.GVisor, "runsc"),
		"root":         filepath.Join(c.Dir, "runsc"),
		"runsc_config": table.Table{"platform": "systrap"},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Dir, gvisorConfig), data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("testbed: writing gVisor's configuration: %w", err)
	}
	return nil
}

// writeTOML writes the configuration file of an instance, with c.ExtraTOML merged into it.
func writeTOML(c Config) error {
	config := containerdTOML(c)
	var extra table.Table
	if err := toml.Unmarshal([]byte(c.ExtraTOML), &extra); err != nil {
		return fmt.Errorf("testbed: reading the extra TOML for containerd %s: %w", c.Name, err)
	}
	table.Merge(config, extra)
	data, err := toml.Marshal(config)
	if err != nil {
		return fmt.Errorf("testbed: encoding containerd's configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "config.toml"), data, 0o644); err != nil {
		return fmt.Errorf("testbed: writing containerd's configuration: %w", err)
	}
	return nil
}

// writeMirrors redirects registries to addresses on this machine: certs.d/HOST/hosts.toml.
func writeMirrors(c Config) error {
	if err := os.MkdirAll(filepath.Join(c.Dir, "certs.d"), 0o755); err != nil {
		return fmt.Errorf("testbed: making the folder of mirrors: %w", err)
	}
	for host, addr := range c.Mirrors {
		dir := filepath.Join(c.Dir, "certs.d", host)
		content := fmt.Sprintf("server = %q\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+addr)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(content), 0o644)
		}
		if err != nil {
			return fmt.Errorf("testbed: writing the mirror of %s: %w", host, err)
		}
	}
	return nil
}
