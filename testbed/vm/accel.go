package vm

import (
	"os"
	"regexp"
)

// hardware matches /proc/cpuinfo if the processor supports virtual machines.
var hardware = regexp.MustCompile(`(?m)^flags\s*:.* (vmx|svm)\b`)

// accelerator returns qemu's accelerator: "kvm" if this machine allows it, otherwise "tcg", which is pure software and
// about ten times slower. $CRIPROXY_VM_ACCEL overrides it. A /dev/kvm without hardware support, as in some virtual
// machines, does not boot Debian's kernel.
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

// processor returns the processor model of the machine: all features except those that are slow to emulate. Software
// copies and clears memory a byte at a time if the processor has instructions for that (erms, fsrm), walks page tables
// of five levels (la57) again for each process, and ends a block of code at each switch of smap. Without these features
// a boot takes 19 s instead of 34 s.
func processor(accel string) string {
	if accel == "kvm" {
		return "max"
	}
	return "max,-erms,-fsrm,-la57,-smap,-smep"
}
