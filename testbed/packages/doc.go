// Package packages has no code, only tests: the packages of criproxy are built from the module above, twice in
// different versions, and installed, upgraded and purged by the real dpkg and rpm in a root folder of their own,
// where a real criproxy runs meanwhile. The units are judged by systemd-analyze.
//
// It needs root, dpkg, rpm, a static busybox and systemd-analyze. Where one is missing the tests are left out
// and say so, and with CI=true they fail.
package packages
