// Package packages has no code, only tests: the packages of criproxy are built from the module above, twice in
// different versions, and installed, upgraded and purged by the real dpkg and rpm in a root folder of their own,
// where a real criproxy runs meanwhile. The units are started by a real systemd; what is built for arm64 runs under qemu. A
// release is made and checked, and a real kubelet runs the DaemonSet's pod of its image.
//
// It needs root, what the testbed needs, dpkg, rpm, a static busybox, systemd and qemu-user-static. Where one is missing the tests are left out
// and say so, and with CI=true they fail.
package packages
