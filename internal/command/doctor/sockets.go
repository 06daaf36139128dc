package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// sockets examines criproxy's socket and those of the runtimes.
func (e *examination) sockets() {
	const about = "sockets"
	if info, err := os.Stat(e.file(filepath.Dir(e.Listen))); err != nil || !info.IsDir() {
		e.add(why.Error, about, "clients-cannot-connect", fmt.Sprintf("the folder of %s does not exist", e.Listen), fmt.Sprintf("mkdir %s, or choose another path with listen", filepath.Dir(e.Listen)))
	} else if info.Mode().Perm()&0o002 != 0 && info.Mode()&os.ModeSticky == 0 {
		e.add(why.Error, about, "other-users-can-get-root", fmt.Sprintf("every user can put another socket in place of %s", e.Listen), fmt.Sprintf("chmod o-w %s", filepath.Dir(e.Listen)))
	}
	if e.socket("criproxy", e.Listen, "start criproxy: systemctl start criproxy") {
		if process, err := e.Served(e.file(e.Listen)); err == nil && process.Stopped {
			e.stopped("criproxy", e.Listen, process)
		} else if err == nil && process.Name != "" && process.Name != "systemd" && !e.Criproxys.Serves(process, e.Listen) {
			e.add(why.Error, about, "clients-cannot-connect", fmt.Sprintf("%s is served by %s, not by criproxy", e.Listen, process), "choose another path with listen, or stop that process")
		}
	}
	for _, b := range e.Backends {
		if !e.socket("backend "+b.Name, b.Address, fmt.Sprintf("start the runtime, or correct its address; calls to it fail until a process serves %s", b.Address)) {
			continue
		}
		switch process, err := e.Served(e.file(b.Address)); {
		case err != nil, b.Reported:
		case process.Stopped:
			e.stopped("backend "+b.Name, b.Address, process)
		case e.Circles(process, b.Address):
			e.add(why.Warning, about, "a-socket-does-not-answer", fmt.Sprintf("the socket of backend %s, %s, is served by %s", b.Name, b.Address, process), CircleCure(b.Name))
		}
	}
}

// stopped adds that the process that serves a socket is stopped.
func (e *examination) stopped(whose, path string, p host.Process) {
	e.add(why.Error, "sockets", "a-socket-does-not-answer", fmt.Sprintf("the socket of %s, %s, is served by %s, which is stopped (state T)", whose, path, p), StoppedCure(p))
}

// StoppedCure is what to do about a process that is stopped.
func StoppedCure(p host.Process) string {
	return fmt.Sprintf("find out who stopped it, and continue it: kill -CONT %d", p.PID)
}

// CircleCure is what to do about a backend whose socket a criproxy serves.
func CircleCure(backend string) string {
	return "if that process is this criproxy, or has it as a backend, give backend " + backend + " the socket of a runtime: criproxy refuses calls that come back to it"
}

// socket examines the socket at path, and reports whether a process serves it.
func (e *examination) socket(whose, path, start string) bool {
	const about = "sockets"
	info, err := os.Stat(e.file(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.add(why.Error, about, "a-socket-does-not-answer", fmt.Sprintf("the socket of %s, %s, does not exist", whose, path), start)
		return false
	case err != nil:
		e.add(why.Error, about, "doctor-cannot-see-everything", fmt.Sprintf("cannot examine the socket of %s: %v", whose, err), "run this as root")
		return false
	case info.Mode().Type() != fs.ModeSocket:
		e.add(why.Error, about, "a-socket-does-not-answer", fmt.Sprintf("%s of %s is not a socket (%s)", path, whose, info.Mode()), "remove it, or correct the path")
		return false
	}
	if info.Mode().Perm()&0o002 != 0 {
		e.add(why.Error, about, "other-users-can-get-root", fmt.Sprintf("every user can connect to %s of %s, and so run any program as root on this node", path, whose), fmt.Sprintf("chmod o-rwx %s, in the configuration of the program that makes it; for monitoring there are listeners with access: [{methods: [read-only]}]", path))
	}
	switch _, err := e.Served(e.file(path)); {
	case err == nil:
		return true
	case errors.Is(err, syscall.ECONNREFUSED):
		e.add(why.Error, about, "a-socket-does-not-answer", fmt.Sprintf("no process serves %s of %s any more: the file is a leftover", path, whose), start)
	case errors.Is(err, fs.ErrPermission):
		e.add(why.Note, about, "doctor-cannot-see-everything", fmt.Sprintf("uid %d may not connect to %s of %s", os.Getuid(), path, whose), "run this as root, as criproxy itself must run")
	default:
		e.add(why.Error, about, "a-socket-does-not-answer", fmt.Sprintf("%s of %s does not answer: %v", path, whose, err), start)
	}
	return false
}
