package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Requirements returns the reasons why this machine cannot run real containers, each with a remedy. If
// there are none, it can. Requirements tries things out: it makes a bridge, enters a namespace, adds a
// cgroup, and removes all of these. It does so once and keeps the answer.
func Requirements() []error { return slices.Clone(requirements()) }

var requirements = sync.OnceValue(func() []error {
	if runtime.GOOS != "linux" {
		return []error{fmt.Errorf("testbed: containers need Linux, and this is %s", runtime.GOOS)}
	}
	if os.Geteuid() != 0 {
		return []error{errors.New("testbed: containers need root, and this is uid " + fmt.Sprint(os.Geteuid()) + " (run the tests with sudo -E)")}
	}
	var reasons []error
	for _, try := range []func() error{tryNamespaces, tryMount, tryCgroups, tryBridge} {
		if err := try(); err != nil {
			reasons = append(reasons, err)
		}
	}
	return reasons
})

// KubeletRequirements returns the reasons why this machine cannot run a kubelet, like Requirements for containers. If
// containers cannot run, it tries nothing.
func KubeletRequirements() []error { return slices.Clone(kubeletRequirements()) }

var kubeletRequirements = sync.OnceValue(func() []error {
	if len(requirements()) > 0 {
		return nil // Requirements reports the reasons
	}
	var reasons []error
	for _, try := range []func() error{tryKubeletCgroups, tryKubeletMounts, tryKernelLog} {
		if err := try(); err != nil {
			reasons = append(reasons, err)
		}
	}
	return reasons
})

// tryKubeletCgroups checks for the cgroup controllers that a kubelet needs.
func tryKubeletCgroups() error {
	need := []string{"cpuset"}
	if !cgroupV2() {
		need = append(need, "cpuacct")
	}
	there := controllers()
	for _, name := range need {
		if !slices.Contains(there, name) {
			return fmt.Errorf("testbed: a kubelet needs the cgroup controller %q, which is not in %s (mount it there)", name, cgroupMount)
		}
	}
	name := fmt.Sprintf("%s-try-%d", cgroupRoot, os.Getpid())
	defer removeEmptyCgroup(name)
	return MakeCgroup(name)
}

// tryKubeletMounts tries the mounts that a kubelet needs: it shares a mount, and in its own namespace mounts a file over
// a sysctl.
func tryKubeletMounts() error {
	dir, err := os.MkdirTemp("", tempDirPrefix+"kubelet-")
	if err != nil {
		return fmt.Errorf("testbed: making a folder to mount on: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := ShareMount(dir); err != nil {
		return fmt.Errorf("%w (inside a container it must be a privileged one)", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	file := filepath.Join(dir, "panic")
	if err := os.WriteFile(file, []byte("10\n"), 0o644); err != nil {
		return err
	}
	err = InMountNamespace(func() error {
		if err := SecludeMounts(dir); err != nil {
			return err
		}
		return Bind(file, "/proc/sys/kernel/panic")
	})
	if err != nil {
		return fmt.Errorf("%w (a kubelet would otherwise change sysctls of the machine)", err)
	}
	return nil
}

// tryKernelLog opens the kernel's log, in which a kubelet looks for processes that the OOM killer has killed.
func tryKernelLog() error {
	log, err := os.Open("/dev/kmsg")
	if err != nil {
		return fmt.Errorf("testbed: a kubelet reads the kernel's log: %w (make the device node, or pass it into the container)", err)
	}
	return log.Close()
}

// Notes says what the testbed does differently on this machine than on most, and why. Tests run nevertheless.
func Notes() []string {
	var notes []string
	if err := TryOverlay(os.TempDir()); err != nil {
		notes = append(notes, fmt.Sprintf("images are unpacked by copying (snapshotter native): %v", err))
	}
	if !cgroupV2() {
		notes = append(notes, "cgroup v1: what runtimes do otherwise on v2 is not exercised")
	}
	return notes
}

// tryNamespaces starts a process in new namespaces of all the kinds that a container has.
func tryNamespaces() error {
	cmd := Command(context.Background(), "true")
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("testbed: entering new namespaces: %w (inside a container it must be a privileged one)", err)
	}
	return nil
}

// tryMount mounts a tmpfs.
func tryMount() error {
	dir, err := os.MkdirTemp("", tempDirPrefix+"mount-")
	if err != nil {
		return fmt.Errorf("testbed: making a folder to mount on: %w", err)
	}
	defer os.Remove(dir)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		return fmt.Errorf("testbed: mounting a tmpfs: %w (inside a container it must be a privileged one)", err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("testbed: unmounting a tmpfs: %w", err)
	}
	return nil
}

// tryCgroups checks for the controllers that runc sets, and makes a cgroup in each hierarchy.
func tryCgroups() error {
	need := []string{"cpu", "memory", "pids"}
	if !cgroupV2() {
		need = append(need, "devices", "freezer")
	}
	there := controllers()
	for _, name := range need {
		if !slices.Contains(there, name) {
			return fmt.Errorf("testbed: there is no cgroup controller %q in %s (mount it there)", name, cgroupMount)
		}
	}
	if cgroupV2() {
		// runc would do this for the first container.
		file := filepath.Join(cgroupMount, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+strings.Join(need, " +")), 0); err != nil {
			return fmt.Errorf("testbed: enabling cgroup controllers for child cgroups: %w (inside a container, move the processes of the root cgroup into a child of it)", err)
		}
	}
	name := fmt.Sprintf("%s-try-%d", cgroupRoot, os.Getpid())
	defer removeEmptyCgroup(name)
	for _, h := range hierarchies() {
		if err := os.MkdirAll(filepath.Join(h, name), 0o755); err != nil {
			return fmt.Errorf("testbed: making a cgroup: %w (inside a container /sys/fs/cgroup must be writable)", err)
		}
	}
	return nil
}

// controllers lists the cgroup controllers that can be used.
func controllers() []string {
	if cgroupV2() {
		data, _ := os.ReadFile(filepath.Join(cgroupMount, "cgroup.controllers"))
		return strings.Fields(string(data))
	}
	var all []string
	for _, m := range mounts("self") {
		if m.fstype == "cgroup" {
			all = append(all, strings.Split(m.opts, ",")...)
		}
	}
	return all
}

// tryBridge makes a bridge and a pair of virtual Ethernet devices, which is all that the network of pods
// needs.
func tryBridge() error {
	name := fmt.Sprintf("ctbtry%d", os.Getpid()%10_000_000)
	for _, link := range []netlink.Link{
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"},
	} {
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("testbed: making a %s network device: %w (the kernel needs CONFIG_BRIDGE and CONFIG_VETH)", link.Type(), err)
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("testbed: deleting a %s network device: %w", link.Type(), err)
		}
	}
	return nil
}
