// This file asks the kernel which process is at the other end of a unix connection.

package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// A Process describes a process at the time when it connected or began to listen: unix(7),
// SO_PEERCRED.
type Process struct {
	PID      int32
	UID, GID uint32
	Name     string   // of the program, in at most 15 bytes; empty if the process has ended
	Stopped  bool     // by SIGSTOP or a debugger; only [Serving] looks
	Args     []string // its command line; only [Serving] looks
}

// String returns the name and the number of the process.
func (p Process) String() string {
	if p.Name == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("%s (process %d)", p.Name, p.PID)
}

// Of returns the process at the other end of conn. It fails for a connection that is not a unix
// socket.
func Of(conn net.Conn) (Process, error) {
	var p Process
	err := control(conn, func(fd uintptr) error {
		var err error
		p, err = peer(int(fd))
		return err
	})
	if err != nil {
		return p, fmt.Errorf("asking the kernel for the process at the other end: %w", err)
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)); err == nil {
		p.Name = strings.TrimSpace(string(comm))
	}
	return p, nil
}

// Identity tells the process from every other one of this machine, also from a later one with its number. It is empty if the
// process has ended, or cannot be seen from here.
func (p Process) Identity() string {
	const began = 19 // starttime
	if all := stat(int(p.PID)); len(all) > began {
		return fmt.Sprintf("%d since %s", p.PID, all[began])
	}
	return ""
}

// Serving connects to a socket, sends nothing, and returns the process that serves it. If no
// process does, the error is that of the connection.
func Serving(path string) (Process, error) {
	conn, err := net.DialTimeout("unix", path, 5*time.Second)
	if err != nil {
		return Process{}, err
	}
	defer conn.Close() // nothing was sent
	p, err := Of(conn)
	if err == nil {
		p.Stopped = strings.EqualFold(State(int(p.PID)), "T")
		_, p.Args, _ = Command(fmt.Sprintf("/proc/%d", p.PID)) // nothing if the process has ended
	}
	return p, err
}

// control calls f with the descriptor of a unix connection.
func control(conn net.Conn, f func(fd uintptr) error) error {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("it is not a unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(fd) }); err != nil {
		return err
	}
	return failed
}
