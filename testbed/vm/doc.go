// Package vm is a whole node in a virtual machine: Debian with systemd as its first process, a kernel of its own, cgroup
// v2 with all controllers, AppArmor and every capability, which the machine that runs the tests may have none of. It can
// be booted again, and lose its power. Its tests install criproxy's package there, between a kubelet and two
// containerds.
//
// qemu runs it, in software where there is no /dev/kvm to use. The image is made by mmdebstrap, and kept in the
// testbed's cache. The tests take minutes, and are left out without -boot: make vm runs them.
package vm
