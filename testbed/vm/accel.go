package vm

import (
	"os"
	"regexp"
)

// hardware is in /proc/cpuinfo where the processor itself runs virtual machines.
var hardware = regexp.MustCompile(`(?m)^flags\s*:.* (vmx|svm)\b`)

// accelerator is what qemu runs machines with: "kvm" where this machine lets us, else "tcg", which is software alone and
// about ten times slower. $CRIPROXY_VM_ACCEL overrides it. A /dev/kvm without hardware behind it, as in some
// virtual machines, does not boot Debian's kernel.
func accelerator() string {
	if forced := os.Getenv("CRIPROXY_VM_ACCEL"); forced != "" {
		return forced
	}
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg"
	}
	defer device.Close()
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err != nil || !hardware.Match(cpu) {
		return "tcg"
	}
	return "kvm"
}
