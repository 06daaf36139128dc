//go:build linux && !race

package transport

import (
	"syscall"
	"unsafe"
)

// Go's scheduler takes part in an ordinary system call: it wakes its monitor, a thread that then looks every 20 µs whether the
// call blocks. In a short call that takes a sixth of all processor time. The functions here leave the scheduler out. They are for
// descriptors that do not block. Long messages go by ordinary system calls: much work may follow them, for which the scheduler
// needs its monitor.

// readNow is read(2).
func readNow(fd int, p []byte) (int, error) { return now(syscall.SYS_READ, fd, p) }

// writeNow is write(2).
func writeNow(fd int, p []byte) (int, error) {
	if len(p) > copied {
		return syscall.Write(fd, p)
	}
	return now(syscall.SYS_WRITE, fd, p)
}

func now(trap uintptr, fd int, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
