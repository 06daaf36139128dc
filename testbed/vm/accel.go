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

// processor is what qemu shows to the machine: all that it has, but for what software emulates slowly. It copies and
// clears memory a byte at a time where the processor has instructions for that (erms, fsrm), walks through page tables
// of five levels (la57) for each process anew, and ends a run of code at each switch of smap. Without these a boot takes
// 19 s in place of 34.
func processor(accel string) string {
	if accel == "kvm" {
		return "max"
	}
	return "max,-erms,-fsrm,-la57,-smap,-smep"
}
