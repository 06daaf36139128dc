package host

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// sharedRun is a folder that containerd 1.7 and ctr use regardless of their configuration.
const sharedRun = "/run/containerd"

// cniCache is where the CNI library in containerd records networks. No setting moves it, so the testbed recognises its
// files by their content.
const cniCache = "/var/lib/cni/results"

// traces are what the instances in a folder have outside of it. findTraces gathers them from the folder
// and from the machine without any daemon, so that it finds everything after a crash at any moment.
type traces struct {
	dir     string
	ids     map[string]bool // of sandboxes and containers: names of bundles and cgroups
	cgroups []string        // names of the instances' own
	files   []string        // outside of dir: sockets of shims, and files of ctr run in /run/containerd
}

func findTraces(dir string) traces {
	t := traces{dir: dir, ids: map[string]bool{}}
	var suffixes []string
	for _, d := range instanceDirs(dir) {
		suffixes = append(suffixes, cgroupSuffix(d))
		bundles, _ := filepath.Glob(filepath.Join(d, "state", "io.containerd.runtime.v2.task", "*", "*"))
		for _, bundle := range bundles {
			id := filepath.Base(bundle)
			t.ids[id] = true
			if socket := shimSocket(bundle); socket != "" && !inside(dir, socket) {
				t.files = append(t.files, socket)
			}
			for _, pattern := range []string{"fifo/*/" + id + "-std*", "runc/*/" + id} {
				files, _ := filepath.Glob(filepath.Join(sharedRun, pattern))
				t.files = append(t.files, files...)
			}
		}
	}
	for _, d := range instanceDirs(dir) { // CRI-O's
		containers, _ := filepath.Glob(filepath.Join(d, "storage", "overlay-containers", "*", "userdata"))
		for _, container := range containers {
			t.ids["crio-"+filepath.Base(filepath.Dir(container))] = true
			t.ids["crio-conmon-"+filepath.Base(filepath.Dir(container))] = true
		}
	}
	for _, h := range hierarchies() {
		entries, _ := os.ReadDir(filepath.Join(h, cgroupRoot))
		for _, e := range entries {
			name := path.Join(cgroupRoot, e.Name())
			ours := slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
			if ours && !slices.Contains(t.cgroups, name) {
				t.cgroups = append(t.cgroups, name)
			}
		}
	}
	return t
}

// shimSocket reads the address of a shim from its bundle. 1.7 writes only the address, 2.4 a JSON object.
func shimSocket(bundle string) string {
	var params struct{ Address string }
	if data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err == nil {
		json.Unmarshal(data, &params)
	} else if data, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil {
		params.Address = string(data)
	}
	socket, ok := strings.CutPrefix(strings.TrimSpace(params.Address), "unix://")
	if !ok {
		return ""
	}
	return socket
}

// processes lists the processes of the instances. It recognises daemons, shims and helpers by their
// program and arguments, and containers by their cgroups and the place of their root file system.
func (t traces) processes() []int {
	programs := []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr", "kubelet", "criproxy", "crio", "conmon", "runsc", "shim"}
	own, _ := os.Readlink("/proc/self/ns/mnt")
	var all []int
	for _, pid := range pids() {
		if pid == os.Getpid() {
			continue
		}
		names := func(arg string) bool { return mentions(arg, t.dir) }
		ours := slices.Contains(programs, program(pid)) && slices.ContainsFunc(command(pid), names)
		ours = ours || slices.ContainsFunc(cgroupsOf(pid), t.ownsCgroup)
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); !ours && err == nil && ns != own {
			ours = slices.ContainsFunc(mounts(fmt.Sprint(pid)), func(m mount) bool {
				return m.point == "/" && mentions(m.opts, t.dir)
			})
		}
		if ours {
			all = append(all, pid)
		}
	}
	return all
}

func (t traces) ownsCgroup(name string) bool {
	for _, own := range t.cgroups {
		if inside(own, name) {
			return true
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if t.ids[part] {
			return true
		}
	}
	return false
}

// cgroupNames lists the cgroups to remove: the instances' own, and those of containers whose sandbox
// named no parent, or a cgroup outside of the testbed.
func (t traces) cgroupNames() []string {
	names := slices.Clone(t.cgroups)
	for id := range t.ids {
		names = append(names, path.Join(defaultCgroup, id))
	}
	for _, pid := range t.processes() {
		for _, name := range cgroupsOf(pid) {
			if t.ids[path.Base(name)] && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// mountPoints lists the mounts below the folder, the newest first.
func (t traces) mountPoints() []string {
	var all []string
	for _, m := range mounts("self") {
		if inside(t.dir, m.point) {
			all = append(all, m.point)
		}
	}
	slices.Reverse(all)
	return all
}

// outside lists the existing files of the instances outside of their folder.
func (t traces) outside() []string {
	var all []string
	for _, file := range t.files {
		if _, err := os.Lstat(file); err == nil {
			all = append(all, file)
		}
	}
	cached, _ := filepath.Glob(filepath.Join(cniCache, "*"))
	for _, file := range cached {
		if data, err := os.ReadFile(file); err == nil && mentions(string(data), t.dir) {
			all = append(all, file)
		}
	}
	return all
}
