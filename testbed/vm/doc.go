// Package vm runs a whole node in a virtual machine: Debian with systemd as its first process, its own kernel, cgroup v2
// with all controllers, AppArmor and every capability. The machine that runs the tests may lack all of these. The node
// can reboot, and lose its power. The tests install criproxy's package there, between a kubelet and two containerds.
//
// qemu runs the machine, in software if /dev/kvm is not usable. mmdebstrap makes the image, which is kept in the
// testbed's cache. The tests take minutes, and are skipped without -boot: make vm runs them.
package vm
