package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/server/listen"
)

// takeoverTime bounds how long a new process may take until it serves.
const takeoverTime = time.Minute

// program returns the path of the file that this process runs. An upgrade may have replaced the file: then the kernel says that it
// was deleted, and what is at its path now is the new program.
func program() (string, error) {
	path, err := os.Executable()
	return strings.TrimSuffix(path, " (deleted)"), err
}

// HandOver starts the program that is installed now, with the same arguments, and passes all sockets
// to it. When the new process serves, this one drains and ends. If the new process does not serve,
// HandOver fails and this process goes on as before.
//
// Both processes accept connections for a moment. That is safe because only one of them decides at any time what has happened:
//
//	this process                                     the successor
//	saves the files, holds its history               is started, with the sockets and a connection to this process
//	sends each backend, then each call that ends     reads them, claims the state folder, builds itself
//	waits                                            serves, and says so
//	leaves files and history to the successor, and   notes and writes what happens
//	drains; sends what its last calls have changed
//	or, if the successor does not say so in time:    is killed, or has ended
//	takes back history and folder, and goes on
func (p *Proxy) HandOver(ctx context.Context) error {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if err := p.changeable(); err != nil {
		return err
	}
	p.set.Save() // for a program that cannot take over the backends from this process, and reads the files
	path, err := program()
	if err != nil {
		return err
	}
	p.changes.Hold()
	next, err := p.succeed(ctx, path)
	if err != nil { // take back what the successor got
		p.changes.GoOn()
		if next != nil {
			next.leave()
		}
		p.relock()
		return fmt.Errorf("handing over to %s: %w; this process goes on as before", path, err)
	}
	// From here on nothing can fail, and nothing takes it back.
	p.set.Release()
	for _, s := range p.listening() { // the new process owns the files now
		if l, ok := listen.Raw(s.listener).(*net.UnixListener); ok {
			l.SetUnlinkOnClose(false)
		}
	}
	p.successor, p.stopped = next, true
	p.changes.PassOn()
	p.handOver()
	return nil
}

// succeed starts the successor, and returns when it serves, or why it does not. Even then it may have begun to read from this
// process; next is nil if it has not.
func (p *Proxy) succeed(ctx context.Context, path string) (next *successor, err error) {
	if p.machine.Succeed != nil {
		ours, theirs := net.Pipe()
		next = p.newSuccessor(ours)
		return next, p.machine.Succeed(ctx, theirs)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("making a socket for the backends: %w", err)
	}
	defer theirs.Close() // the new process has its own
	next = p.newSuccessor(ours)
	return next, p.startProgram(ctx, path, theirs)
}

// startProgram starts the program at path, and returns when it serves. The new process inherits, in this order, the sockets, a pipe
// into which it writes when it serves, and the connection from which it reads the backends; variables of its environment say which is
// which.
func (p *Proxy) startProgram(ctx context.Context, path string, backends *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverTime)
	defer cancel()
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	defer writer.Close()
	// Not CommandContext: ctx bounds only the start of a process that is to live on.
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, p.stderr
	if listen.Supervised() && os.Getpid() != 1 { // process 1 has no parent
		// Make it a child of our supervisor. systemd does not notice the end of a process that is not its child, and
		// when it stops the service it does not wait for such a process, but kills it at once.
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT}
	}
	// The sockets, then the pipe, then the connection: descriptors 3 and up of the new process.
	var paths []string
	for _, s := range p.listening() {
		f, err := listen.FileOf(s.listener)
		if err != nil {
			return fmt.Errorf("passing on %s: %w", s.path, err)
		}
		defer f.Close() // the new process has its own
		paths, cmd.ExtraFiles = append(paths, s.path), append(cmd.ExtraFiles, f)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, writer, backends)
	list, _ := json.Marshal(paths) // strings: cannot fail
	cmd.Env = append(os.Environ(), listen.SocketsVariable+"="+string(list), fmt.Sprintf("%s=%d", listen.ReadyVariable, 3+len(paths)), fmt.Sprintf("%s=%d", listen.BackendsVariable, 4+len(paths)))
	if err := cmd.Start(); err != nil {
		return err
	}
	klog.InfoS("Handing over to a new process", "program", path, "pid", cmd.Process.Pid)
	_ = backends.Close()
	_ = writer.Close() // our end: the pipe ends when the new process does
	// Nobody kills it while its word may still come: a process that is killed must not be taken for one that serves.
	stop := context.AfterFunc(ctx, func() { _ = reader.SetReadDeadline(time.Now()) })
	defer stop()
	word, err := io.ReadAll(io.LimitReader(reader, int64(len(listen.ReadyWord))))
	if err == nil && string(word) == listen.ReadyWord {
		listen.Notify(fmt.Sprintf("MAINPID=%d", cmd.Process.Pid))
		return nil
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
	}
	// It does not serve. Why, if this process can know that?
	ended := cmd.Wait()
	if errors.Is(ended, syscall.ECHILD) {
		ended = nil // the supervisor gets the exit status
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("it does not serve after %s", takeoverTime)
	}
	return errors.Join(errors.New("it does not serve; its log says why"), ended)
}
