package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Kubelet is how the kubelet of the node is set up. Its JSON is stable.
type Kubelet struct {
	Process  int    `json:"process"`
	Version  string `json:"version,omitempty"`       // "v1.34.1"; empty if it is not known
	Endpoint string `json:"endpoint,omitempty"`      // the path of the socket that it speaks to
	Images   string `json:"images,omitempty"`        // the same for images; empty if it is the same
	Driver   string `json:"cgroup_driver,omitempty"` // "systemd" or "cgroupfs", as configured; kubelet may go by what the runtime says

	process
	unset   bool   // nothing names its endpoint, which is kubelet's default then
	fromCRI bool   // it asks CRI, and not its cAdvisor, for the figures of pods
	config  string // the file that says what it speaks to, or the first; empty if it has none
}

// findKubelet returns the kubelet of the node, nil if none runs, and what is wrong with its
// configuration. A machine may be several nodes, in containers or in tests: ours is the one
// that speaks to criproxy, or else to one of the runtimes.
func (e *examination) findKubelet() (*Kubelet, error) {
	var best *Kubelet
	var failed error
	closest := -1
	for _, p := range e.processes {
		if p.name != "kubelet" {
			continue
		}
		k := &Kubelet{Process: p.pid, process: p}
		err := e.readKubelet(k)
		closeness := 0
		switch {
		case k.Endpoint == "":
		case e.same(k.Endpoint, e.Listen):
			closeness = 2
		case slices.ContainsFunc(e.Backends, func(b Backend) bool { return e.same(k.Endpoint, b.Address) }):
			closeness = 1
		}
		if closeness > closest {
			best, failed, closest = k, err, closeness
		}
	}
	return best, failed
}

// kubeletInside are programs that have a kubelet in them, and the setting that names its runtime: https://docs.k3s.io/cli/agent and
// https://microk8s.io/docs/configuring-services.
var kubeletInside = map[string]string{
	"k3s-server": "container-runtime-endpoint in /etc/rancher/k3s/config.yaml",
	"k3s-agent":  "container-runtime-endpoint in /etc/rancher/k3s/config.yaml",
	"kubelite":   "--container-runtime-endpoint in /var/snap/microk8s/current/args/kubelet",
}

// kubelets finds kubelet, and looks at what it speaks to.
func (e *examination) kubelets() {
	k, err := e.findKubelet()
	if k == nil {
		for _, p := range e.processes {
			if where, ok := kubeletInside[p.name]; ok {
				e.add(Note, "kubelet", fmt.Sprintf("kubelet runs inside %s (process %d), which does not show what it speaks to", p.name, p.pid),
					fmt.Sprintf("%s tells it: unix://%s; criproxy tail shows whether it calls", where, e.Listen))
				return
			}
		}
		e.add(Note, "kubelet", "kubelet does not run", "look again when it does: its runtime is unknown until then")
		return
	}
	e.kubelet = k
	if err != nil {
		e.add(Warning, "kubelet", fmt.Sprintf("its configuration cannot be read: %v", err), "run this as root, on the node itself")
	}
	to := fmt.Sprintf("set containerRuntimeEndpoint: unix://%s in %s, and restart kubelet", e.Listen, k.config)
	if k.config == "" || k.flag("container-runtime-endpoint") != "" {
		to = fmt.Sprintf("start kubelet with --container-runtime-endpoint=unix://%s", e.Listen)
	}
	if strings.HasSuffix(e.Listen, crioSuffix) && len(e.Backends) > 0 && !e.Backends[0].HTTP {
		e.add(Error, "kubelet", fmt.Sprintf("kubelet takes %s for CRI-O's own socket, and asks there over HTTP for the figures of containers, which the primary does not serve", e.Listen), "choose another path with listen, such as /run/criproxy.sock")
		to = "first choose another path with listen, and let kubelet use that"
	}
	e.kubeletVersion()
	if minor := minorOf(k.Version); k.unset && minor > 0 && minor < 27 {
		k.Endpoint = ""
	}
	switch {
	case k.Endpoint == "":
		e.add(Error, "kubelet", "kubelet's configuration names no runtime to speak to", to)
	case !e.same(k.Endpoint, e.Listen):
		e.add(Error, "kubelet", fmt.Sprintf("kubelet speaks to %s, past criproxy at %s", k.Endpoint, e.Listen), to)
	}
	if k.Images != "" && !e.same(k.Images, e.Listen) {
		e.add(Error, "kubelet", fmt.Sprintf("kubelet pulls images through %s, past criproxy: images with a prefix are not found", k.Images),
			fmt.Sprintf("leave imageServiceEndpoint out, or set it to unix://%s", e.Listen))
	}
	if kind := k.flag("container-runtime"); kind != "" && kind != "remote" {
		e.add(Error, "kubelet", fmt.Sprintf("kubelet is started with --container-runtime=%s and asks no socket at all", kind), "start it with --container-runtime=remote, or leave that out from 1.27 on")
	}
}

// defaultEndpoint is where kubelet 1.27 and later look for the runtime if their configuration names none. Kubelet 1.24 to
// 1.26 need a name, and older ones have Docker built in: https://github.com/kubernetes/kubernetes/pull/112136.
const defaultEndpoint = "/run/containerd/containerd.sock"

// crioSuffix is what a path ends in that kubelet takes for CRI-O's socket.
const crioSuffix = "run/crio/crio.sock"

func (e *examination) kubeletVersion() {
	k := e.kubelet
	if e.Version == nil {
		return
	}
	var err error
	if k.Version, err = e.Version(e.file(fmt.Sprintf("/proc/%d/exe", k.pid))); err != nil {
		cure := "run this as root, on the node itself"
		if errors.Is(err, context.DeadlineExceeded) {
			cure = "look again when the node is less busy: kubelet --version took too long"
		}
		e.add(Note, "kubelet", fmt.Sprintf("its version is unknown: %v", err), cure)
		return
	}
	minor := minorOf(k.Version)
	switch {
	case minor == 0:
	case minor < 6:
		e.add(Error, "kubelet", fmt.Sprintf("kubelet %s speaks a CRI from before v1alpha1 had its present form", k.Version), "use kubelet 1.6 or newer")
	case minor >= 37 && len(e.Backends) > 0 && e.Backends[0].Driver == "":
		e.add(Warning, "kubelet", fmt.Sprintf("kubelet %s asks the primary for its cgroup driver, which it does not tell (RuntimeConfig); kubelet means to start no more without that", k.Version),
			"update the primary: containerd from 2.0, CRI-O from 1.28")
	}
}

// minorOf returns the 34 of "v1.34.1", 0 if there is none.
func minorOf(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v1."), ".")
	if !strings.HasPrefix(version, "v1.") {
		return 0
	}
	minor, _ := strconv.Atoi(parts[0])
	return minor
}

// readKubelet fills in what command line and files say. The command line goes first, then
// the last of the files of --config-dir, in the order of their names, then that of --config:
// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
func (e *examination) readKubelet(k *Kubelet) error {
	var file struct {
		Endpoint string          `yaml:"containerRuntimeEndpoint"`
		Images   string          `yaml:"imageServiceEndpoint"`
		Driver   string          `yaml:"cgroupDriver"`
		Gates    map[string]bool `yaml:"featureGates"`
	}
	at := func(path string) string {
		if !filepath.IsAbs(path) { // it is below kubelet's working folder
			path = filepath.Join("/proc", strconv.Itoa(k.pid), "cwd", path)
		}
		return e.file(path)
	}
	var failed error
	read := func(path string) {
		was := file.Endpoint
		data, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(data, &file)
		}
		failed = errors.Join(failed, err)
		if k.config == "" || file.Endpoint != was {
			k.config = strings.TrimPrefix(path, strings.TrimSuffix(e.Root, "/"))
		}
	}
	if path := k.flag("config"); path != "" {
		read(at(path))
	}
	if dir := k.flag("config-dir"); dir != "" {
		failed = errors.Join(failed, filepath.WalkDir(at(dir), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && filepath.Ext(path) == ".conf" {
				read(path)
			}
			return err
		}))
	}
	either := func(flag, inFile string) string {
		if v := k.flag(flag); v != "" {
			return v
		}
		return inFile
	}
	k.Endpoint = strings.TrimPrefix(either("container-runtime-endpoint", file.Endpoint), "unix://")
	if k.Endpoint == "" && failed == nil {
		k.Endpoint, k.unset = defaultEndpoint, true
	}
	k.Images = strings.TrimPrefix(either("image-service-endpoint", file.Images), "unix://")
	const statsFromCRI = "PodAndContainerStatsFromCRI"
	k.fromCRI = file.Gates[statsFromCRI] || slices.Contains(strings.Split(k.flag("feature-gates"), ","), statsFromCRI+"=true")
	k.Driver = either("cgroup-driver", file.Driver)
	if k.Driver == "" && failed == nil {
		k.Driver = "cgroupfs" // kubelet's default
	}
	return failed
}

// same reports whether two paths are those of one file.
func (e *examination) same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, err := os.Stat(e.file(a))
	if err != nil {
		return plain(a) == plain(b)
	}
	other, err := os.Stat(e.file(b))
	return err == nil && os.SameFile(one, other)
}

// drivers compares how the groups of pods are made.
func (e *examination) drivers() {
	if len(e.Backends) == 0 {
		return
	}
	primary := e.Backends[0]
	for _, b := range e.Backends[1:] {
		if b.Driver != "" && primary.Driver != "" && b.Driver != primary.Driver {
			e.add(Error, "cgroups", fmt.Sprintf("backend %s uses the cgroup driver %s, the primary %s: kubelet names the cgroups of all pods in the primary's way, so pods of %s fail or escape their limits", b.Name, b.Driver, primary.Driver, b.Name),
				"set both to one driver, systemd where systemd runs the node: SystemdCgroup = true of containerd's runc options, cgroup_manager of CRI-O")
		}
	}
	k := e.kubelet
	if k == nil || k.Driver == "" {
		return
	}
	for _, b := range e.Backends {
		switch {
		case b.Driver == "" && b == primary:
			e.add(Note, "cgroups", fmt.Sprintf("the primary does not tell its cgroup driver; kubelet takes %s, as its own configuration says", k.Driver), "make sure that the primary has the same, in its configuration")
		case b.Driver != "" && primary.Driver == "" && b.Driver != k.Driver:
			e.add(Error, "cgroups", fmt.Sprintf("backend %s uses the cgroup driver %s, kubelet %s", b.Name, b.Driver, k.Driver), "set both to one driver: cgroupDriver in kubelet's configuration")
		}
	}
}
