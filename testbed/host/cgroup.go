package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupRoot is the parent of the cgroups of all instances.
const cgroupRoot = "/criproxy-testbed"

// defaultCgroup is where containerd puts containers whose sandbox names no parent.
const defaultCgroup = "/k8s.io"

const cgroupMount = "/sys/fs/cgroup"

// Cgroup returns the name of the cgroup of an instance in dir. Clean needs only dir to find it.
func Cgroup(name, dir string) string { return path.Join(cgroupRoot, name+cgroupSuffix(dir)) }

func cgroupSuffix(dir string) string { return fmt.Sprintf("-%08x", Hash(dir)) }

// cgroupV2 reports whether the machine has only the unified hierarchy.
func cgroupV2() bool {
	var fs unix.Statfs_t
	return unix.Statfs(cgroupMount, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// hierarchies lists the folders where cgroups are mounted: one folder on v2, and one for each set of
// controllers on v1, where a cgroup exists once in each.
func hierarchies() []string {
	if cgroupV2() {
		return []string{cgroupMount}
	}
	var all []string
	for _, m := range mounts("self") {
		if (m.fstype == "cgroup" || m.fstype == "cgroup2") && !slices.Contains(all, m.point) {
			all = append(all, m.point)
		}
	}
	return all
}

// cgroupFolders lists the folders of the cgroup named name and of all below it, in every hierarchy,
// children before parents.
func cgroupFolders(name string) []string {
	var all []string
	for _, h := range hierarchies() {
		filepath.WalkDir(filepath.Join(h, name), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, p)
			}
			return nil // a cgroup may vanish during the walk
		})
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// MakeCgroup makes a cgroup in every hierarchy, with all controllers, as the kubelet needs it.
func MakeCgroup(name string) error {
	for _, h := range hierarchies() {
		dir := h
		for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			err := passControllers(parent)
			if err == nil {
				err = os.MkdirAll(dir, 0o755)
			}
			if err == nil {
				err = inheritCpuset(parent, dir)
			}
			if err != nil {
				return fmt.Errorf("testbed: making cgroup %s: %w", name, err)
			}
		}
	}
	return nil
}

// passControllers enables all controllers of a v2 cgroup for its children. On v1 it does nothing.
func passControllers(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	for controller := range strings.FieldsSeq(string(data)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if err != nil && slices.Contains([]string{"cpu", "cpuset", "memory", "hugetlb", "pids"}, controller) {
			return fmt.Errorf("enabling the controller %s for child cgroups: %w", controller, err)
		}
	}
	return nil
}

// inheritCpuset copies the CPUs and memory nodes of the parent into a new cpuset of v1. A new cpuset has none, and no
// process can join it until it has some.
func inheritCpuset(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || strings.TrimSpace(string(have)) != "" {
			continue
		}
		inherited, err := os.ReadFile(filepath.Join(parent, file))
		if err == nil && strings.TrimSpace(string(inherited)) != "" { // on v2 empty means all
			err = os.WriteFile(filepath.Join(dir, file), inherited, 0)
		}
		if err != nil {
			return fmt.Errorf("filling %s: %w", file, err)
		}
	}
	return nil
}

// removeCgroup kills all processes in a cgroup and below it, and removes it. It succeeds if there is no such cgroup.
func removeCgroup(ctx context.Context, name string) error {
	if c := path.Clean(name); c == "/" || c == "." {
		return fmt.Errorf("testbed: refusing to remove the root cgroup")
	}
	for {
		folders := cgroupFolders(name)
		if len(folders) == 0 {
			return nil
		}
		var failed error
		for _, dir := range folders {
			thaw(dir)
			for _, pid := range cgroupProcs(dir) {
				unix.Kill(pid, unix.SIGKILL)
			}
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = err
			}
		}
		if failed == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: removing cgroup %s: %w", name, errors.Join(ctx.Err(), failed))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// thaw lets the processes of a cgroup go on: on v1 a paused container dies only then. One of the two files exists.
func thaw(folder string) {
	os.WriteFile(filepath.Join(folder, "freezer.state"), []byte("THAWED"), 0)
	os.WriteFile(filepath.Join(folder, "cgroup.freeze"), []byte("0"), 0)
}

// removeEmptyCgroup removes a cgroup that several instances share, unless one of them still uses it.
func removeEmptyCgroup(name string) {
	for _, h := range hierarchies() {
		os.Remove(filepath.Join(h, name))
	}
}

// CgroupPIDs returns the processes in a cgroup and below it.
func CgroupPIDs(name string) []int {
	var all []int
	for _, folder := range cgroupFolders(name) {
		all = append(all, cgroupProcs(folder)...)
	}
	return all
}

func cgroupProcs(dir string) []int {
	data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	var all []int
	for word := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			all = append(all, pid)
		}
	}
	return all
}

// cgroupsOf lists the names of the cgroups that a process is in.
func cgroupsOf(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	var all []string
	for line := range strings.Lines(string(data)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			all = append(all, parts[2])
		}
	}
	return all
}
