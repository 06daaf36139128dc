package doctor

import (
	"cmp"
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

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// Kubelet is how the kubelet of the node is set up. Its JSON is stable.
type Kubelet struct {
	Process  int    `json:"process"`
	Version  string `json:"version,omitempty"`       // "v1.34.1"; empty if it is unknown
	Endpoint string `json:"endpoint,omitempty"`      // the path of the socket that it speaks to
	Images   string `json:"images,omitempty"`        // the path of the socket for images; empty if it is Endpoint
	Driver   string `json:"cgroup_driver,omitempty"` // "systemd" or "cgroupfs", as configured; the runtime's answer may override it

	process
	unset   bool   // its configuration names no endpoint, so that Endpoint is kubelet's default
	fromCRI bool   // it gets its figures about pods from CRI, not from its cAdvisor
	config  string // the file that names its endpoint, else its first file; empty if it has none
}

// findKubelet returns the kubelet of the node, nil if none runs, and an error if its configuration cannot be read. If
// several kubelets run on the machine, as nodes in containers or in tests, it prefers one that speaks to criproxy, then
// one that speaks to one of the runtimes.
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

// kubeletInside maps programs that contain a kubelet to the setting that names its runtime:
// https://docs.k3s.io/cli/agent and https://microk8s.io/docs/configuring-services.
var kubeletInside = map[string]string{
	"k3s-server": "container-runtime-endpoint in /etc/rancher/k3s/config.yaml",
	"k3s-agent":  "container-runtime-endpoint in /etc/rancher/k3s/config.yaml",
	"kubelite":   "--container-runtime-endpoint in /var/snap/microk8s/current/args/kubelet",
}

// kubelets finds kubelet, and examines the sockets that it speaks to.
func (e *examination) kubelets() {
	k, err := e.findKubelet()
	if k == nil {
		for _, p := range e.processes {
			if where, ok := kubeletInside[p.name]; ok {
				e.add(why.Note, "kubelet", "doctor-cannot-see-everything", fmt.Sprintf("kubelet runs inside %s (process %d), which hides the socket that kubelet speaks to", p.name, p.pid),
					fmt.Sprintf("set it with %s: unix://%s; criproxy tail shows whether kubelet calls criproxy", where, e.Listen))
				return
			}
		}
		e.add(why.Note, "kubelet", "doctor-cannot-see-everything", "kubelet does not run, so the socket that it speaks to is unknown", "run doctor again when kubelet runs")
		return
	}
	e.kubelet = k
	if err != nil {
		e.add(why.Warning, "kubelet", "doctor-cannot-see-everything", fmt.Sprintf("cannot read kubelet's configuration: %v", err), "run this as root, on the node itself")
	}
	to := fmt.Sprintf("set containerRuntimeEndpoint: unix://%s in %s, and restart kubelet", e.Listen, k.config)
	if k.config == "" || k.flag("container-runtime-endpoint") != "" {
		to = fmt.Sprintf("start kubelet with --container-runtime-endpoint=unix://%s", e.Listen)
	}
	if strings.HasSuffix(e.Listen, crioSuffix) && len(e.Backends) > 0 && !e.Backends[0].HTTP {
		e.add(why.Error, "kubelet", "kubelet-does-not-use-criproxy", fmt.Sprintf("kubelet takes %s for CRI-O's own socket, and asks there over HTTP for figures about containers, but the primary does not serve HTTP", e.Listen), "choose another path with listen, such as /run/criproxy.sock")
		to = "first choose another path with listen, then make kubelet use that path"
	}
	e.kubeletVersion()
	if minor := minorOf(k.Version); k.unset && minor > 0 && minor < 27 {
		k.Endpoint = ""
	}
	switch {
	case k.Endpoint == "":
		e.add(why.Error, "kubelet", "kubelet-does-not-use-criproxy", "kubelet's configuration names no runtime to speak to", to)
	case !e.same(k.Endpoint, e.Listen):
		e.add(why.Error, "kubelet", "kubelet-does-not-use-criproxy", fmt.Sprintf("kubelet bypasses criproxy: it speaks to %s, not to %s", k.Endpoint, e.Listen), to)
	}
	if k.Images != "" && !e.same(k.Images, e.Listen) {
		e.add(why.Error, "kubelet", "kubelet-does-not-use-criproxy", fmt.Sprintf("kubelet bypasses criproxy for images: it pulls them through %s, where images with a prefix are not found", k.Images),
			fmt.Sprintf("leave imageServiceEndpoint out, or set it to unix://%s", e.Listen))
	}
	if kind := k.flag("container-runtime"); kind != "" && kind != "remote" {
		e.add(why.Error, "kubelet", "kubelet-does-not-use-criproxy", fmt.Sprintf("kubelet runs with --container-runtime=%s, so that it uses no socket at all", kind), "start it with --container-runtime=remote, or leave that out from 1.27 on")
	}
}

// defaultEndpoint is the socket that kubelet 1.27 and later use if their configuration names none. kubelet 1.24 to 1.26
// do not start without one, and older versions have Docker built in:
// https://github.com/kubernetes/kubernetes/pull/112136.
const defaultEndpoint = "/run/containerd/containerd.sock"

// crioSuffix is the end of paths that kubelet takes for CRI-O's socket.
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
			cure = "run doctor again when the node is less busy: kubelet --version took too long"
		}
		e.add(why.Note, "kubelet", "doctor-cannot-see-everything", fmt.Sprintf("kubelet's version is unknown: %v", err), cure)
		return
	}
	minor := minorOf(k.Version)
	switch {
	case minor == 0:
	case minor < 6:
		e.add(why.Error, "kubelet", "kubelet-and-a-runtime-do-not-fit", fmt.Sprintf("kubelet %s speaks a CRI older than the final form of v1alpha1", k.Version), "use kubelet 1.6 or newer")
	case minor >= 37 && len(e.Backends) > 0 && e.Backends[0].Driver == "":
		e.add(why.Warning, "kubelet", "kubelet-and-a-runtime-do-not-fit", fmt.Sprintf("kubelet %s asks the primary for its cgroup driver (RuntimeConfig), but the primary does not report it; future versions of kubelet will not start without an answer", k.Version),
			"update the primary: containerd from 2.0, CRI-O from 1.28")
	}
}

// minorOf returns the minor version, such as 34 for "v1.34.1", or 0 if version has another form.
func minorOf(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v1."), ".")
	if !strings.HasPrefix(version, "v1.") {
		return 0
	}
	minor, _ := strconv.Atoi(parts[0])
	return minor
}

// readKubelet fills in k from kubelet's command line and files. The command line takes precedence over the files in
// --config-dir, of which the last by name takes precedence, and those over the file of --config:
// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
func (e *examination) readKubelet(k *Kubelet) error {
	var file struct {
		Endpoint string          `yaml:"containerRuntimeEndpoint"`
		Images   string          `yaml:"imageServiceEndpoint"`
		Driver   string          `yaml:"cgroupDriver"`
		Gates    map[string]bool `yaml:"featureGates"`
	}
	at := func(path string) string {
		if !filepath.IsAbs(path) { // it is relative to kubelet's working folder
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
	k.Endpoint = strings.TrimPrefix(cmp.Or(k.flag("container-runtime-endpoint"), file.Endpoint), "unix://")
	if k.Endpoint == "" && failed == nil {
		k.Endpoint, k.unset = defaultEndpoint, true
	}
	k.Images = strings.TrimPrefix(cmp.Or(k.flag("image-service-endpoint"), file.Images), "unix://")
	const statsFromCRI = "PodAndContainerStatsFromCRI"
	k.fromCRI = file.Gates[statsFromCRI] || slices.Contains(strings.Split(k.flag("feature-gates"), ","), statsFromCRI+"=true")
	k.Driver = cmp.Or(k.flag("cgroup-driver"), file.Driver)
	if failed == nil {
		k.Driver = cmp.Or(k.Driver, "cgroupfs") // kubelet's default
	}
	return failed
}

// same reports whether two paths lead to the same socket. Neither of them need exist.
func (e *examination) same(a, b string) bool {
	return plain(a) == plain(b) || host.SameSocket(e.file(a), e.file(b))
}

// drivers compares the cgroup drivers of kubelet and the runtimes.
func (e *examination) drivers() {
	if len(e.Backends) == 0 {
		return
	}
	primary := e.Backends[0]
	for _, b := range e.Backends[1:] {
		if b.Driver != "" && primary.Driver != "" && b.Driver != primary.Driver {
			e.add(why.Error, "cgroups", "kubelet-and-a-runtime-do-not-fit", fmt.Sprintf("backend %s uses the cgroup driver %s, the primary %s: kubelet names the cgroups of all pods as the primary's driver does, so pods of %s fail or escape their limits", b.Name, b.Driver, primary.Driver, b.Name),
				"set both to the same driver, systemd if systemd runs the node: for containerd SystemdCgroup = true in runc's options, for CRI-O cgroup_manager")
		}
	}
	k := e.kubelet
	if k == nil || k.Driver == "" {
		return
	}
	for _, b := range e.Backends {
		switch {
		case b.Driver == "" && b == primary:
			e.add(why.Note, "cgroups", "kubelet-and-a-runtime-do-not-fit", fmt.Sprintf("the primary does not report its cgroup driver; kubelet uses %s, from its own configuration", k.Driver), "make sure that the primary's configuration has the same driver")
		case b.Driver != "" && primary.Driver == "" && b.Driver != k.Driver:
			e.add(why.Error, "cgroups", "kubelet-and-a-runtime-do-not-fit", fmt.Sprintf("backend %s uses the cgroup driver %s, kubelet %s", b.Name, b.Driver, k.Driver), "set both to the same driver: cgroupDriver in kubelet's configuration")
		}
	}
}
