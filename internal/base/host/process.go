package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Command returns the name of the program of a process, in at most 15 bytes, and its command line. dir is its folder in /proc:
// proc(5). It fails if the process has ended.
func Command(dir string) (name string, args []string, err error) {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // another user's may be hidden
	return strings.TrimSpace(string(comm)), strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"), err
}

// State returns the letter for the state of a process, such as T for one that is stopped, and Z for one that has ended and
// whose parent has not waited for it. It is empty if there is no such process.
func State(pid int) string {
	if all := stat(pid); len(all) > 0 {
		return all[0]
	}
	return ""
}

// stat returns what proc_pid_stat(5) has of a process, from its state on; nothing if the process has ended.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name of the program may contain anything
}

// Flag returns the value of a flag on a command line, as -NAME VALUE or --NAME=VALUE, empty if it is not there. The last one
// counts.
func Flag(args []string, name string) (value string) {
	for i, arg := range args {
		key, v, assigned := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case key != name || !strings.HasPrefix(arg, "-"):
		case assigned:
			value = v
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}
