// Emulated runs a command to which programs for arm64 are programs like others: those that it starts itself, and those
// that these start.
//
//	go run ./internal/testing/emulated env GOARCH=arm64 go test ./...
//
// The kernel gives them to qemu-aarch64-static, but only below the command: binfmt_misc belongs to a user namespace since
// Linux 6.7, and Emulated makes one. In it the command is root, with all users of the machine if root started it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	emulator = "qemu-aarch64-static"
	binfmt   = "/proc/sys/fs/binfmt_misc"
	inside   = "CRIPROXY_EMULATED" // set in the new namespaces, to the emulator's path
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "emulated:", err)
		code = 1
	}
	os.Exit(code)
}

func run(command []string) (code int, err error) {
	if len(command) == 0 {
		return 0, errors.New("no command; usage: emulated COMMAND [ARG...]")
	}
	if path := os.Getenv(inside); path != "" {
		return 0, become(command, path)
	}
	path, err := exec.LookPath(emulator)
	if err != nil {
		return 0, fmt.Errorf("%w: it is in Debian's package qemu-user-static", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, command...)
	cmd.Env = append(os.Environ(), inside+"="+path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	ids := func(id int) []syscall.SysProcIDMap {
		if os.Geteuid() == 0 {
			return []syscall.SysProcIDMap{{Size: 1<<32 - 1}} // everybody
		}
		return []syscall.SysProcIDMap{{HostID: id, Size: 1}}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: ids(os.Geteuid()), GidMappings: ids(os.Getegid()), GidMappingsEnableSetgroups: os.Geteuid() == 0,
		Pdeathsig: syscall.SIGTERM,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// become registers the emulator in the new namespaces, and replaces this process with the command.
func become(command []string, path string) error {
	if err := unix.Mount("binfmt_misc", binfmt, "binfmt_misc", 0, ""); err != nil {
		return fmt.Errorf("mounting %s in a user namespace, which needs Linux 6.7: %w", binfmt, err)
	}
	if err := os.WriteFile(binfmt+"/register", []byte(format(path)), 0); err != nil {
		return fmt.Errorf("registering %s: %w", path, err)
	}
	if err := os.Unsetenv(inside); err != nil {
		return err
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, command, os.Environ())
}

// format is a line for the file register: ELF files of 64 bits, little-endian, for AArch64, belong to the emulator. The
// kernel keeps it open (F), because a program may see other files, and tells it the name that the program was called (P).
func format(path string) string {
	const header = "\x7fELF\x02\x01............\xb7\x00"
	var magic, mask strings.Builder
	for _, b := range []byte(header) {
		if b == '.' { // may be anything
			magic.WriteString(`\x00`)
			mask.WriteString(`\x00`)
			continue
		}
		fmt.Fprintf(&magic, `\x%02x`, b)
		mask.WriteString(`\xff`)
	}
	return fmt.Sprintf(":%s:M::%s:%s:%s:PF", emulator, &magic, &mask, path)
}
