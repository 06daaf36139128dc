package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a daemon that outlives the program that started it. Its pid file alone identifies it: another program
// can open the same file and go on with it. If the kernel has given the pid to another process meanwhile, the start
// time in the file tells.
//
// Start must not be called twice at once; every other method may be called at any time.
type Process struct {
	title   string
	pidFile string
	logFile string // gets standard output and standard error, appended
}

// NewProcess returns the process with the pid file base.pid and the log base.log, whether it runs or not. Messages
// call it title.
func NewProcess(title, base string) Process {
	return Process{title: title, pidFile: base + ".pid", logFile: base + ".log"}
}

// Title returns what messages call the process.
func (p Process) Title() string { return p.title }

// Started reports whether the process was started and neither Kill nor Terminate has ended it since. It may have
// ended by itself.
func (p Process) Started() bool {
	_, err := os.Stat(p.pidFile)
	return err == nil
}

// LogFile returns the path of the log. A process that is started again goes on with it.
func (p Process) LogFile() string { return p.logFile }

// Start runs argv in a session of its own, with standard input closed. It returns when the process
// exists, ready or not.
func (p Process) Start(argv, env []string) error {
	if pid, ok := p.PID(); ok {
		return fmt.Errorf("testbed: starting %s: it is already running as process %d", p.title, pid)
	}
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("testbed: starting %s: %w", p.title, err)
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	cmd.Dir = filepath.Dir(p.pidFile)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	// A daemon must not inherit files that this program has itself inherited: one may be a lock, as under flock(1).
	// Go does not pass on its own files. Kernels before 5.11 cannot do this; there the daemon inherits them.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("testbed: starting %s: %w", p.title, err)
	}
	go cmd.Wait() // reaps the process if it ends before this program
	if err := p.Adopt(cmd.Process.Pid); err != nil {
		unix.Kill(cmd.Process.Pid, unix.SIGKILL)
		return fmt.Errorf("%w\n%s", err, p.LogTail(10))
	}
	return nil
}

// Alias returns the process that runs now, with its own pid file, so that the caller can follow it after the original
// Process has adopted another one.
func (p Process) Alias(suffix string) (Process, error) {
	pid, _ := p.PID()
	p.pidFile += suffix
	return p, p.Adopt(pid)
}

// Environ returns our environment without the variables in drop, and without variables that would change how a daemon
// starts or where it reports to.
func Environ(drop ...string) []string {
	drop = append(drop, "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "GODEBUG", "GOTRACEBACK")
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, name) || strings.HasPrefix(name, "OTEL_")
	})
}

// Adopt makes p stand for the process pid from now on.
func (p Process) Adopt(pid int) error {
	stat, err := readStat(pid)
	if err == nil {
		err = os.WriteFile(p.pidFile, fmt.Appendf(nil, "%d %s\n", pid, stat.start), 0o644)
	}
	if err != nil {
		return fmt.Errorf("testbed: noting the process id of %s: %w", p.title, err)
	}
	return nil
}

// PID returns the id of the process, and whether it is alive. A stopped process is alive, a zombie is not.
func (p Process) PID() (int, bool) {
	data, err := os.ReadFile(p.pidFile)
	if err != nil {
		return 0, false
	}
	first, start, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		return 0, false
	}
	stat, err := readStat(pid)
	return pid, err == nil && stat.start == start && !stat.dead()
}

// Signal sends sig. SIGKILL and SIGTERM succeed even if the process has ended.
func (p Process) Signal(sig unix.Signal) error {
	pid, ok := p.PID()
	if !ok {
		if sig == unix.SIGKILL || sig == unix.SIGTERM {
			return nil
		}
		return fmt.Errorf("testbed: sending %s to %s: it is not running", unix.SignalName(sig), p.title)
	}
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("testbed: sending %s to %s (process %d): %w", unix.SignalName(sig), p.title, pid, err)
	}
	return nil
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p Process) Kill() error {
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return p.waitGone(ctx)
}

// Terminate asks the process to end with SIGTERM and returns when it is gone. It thaws a frozen process, which
// would not act on the signal. It waits for a minute if ctx has no deadline.
func (p Process) Terminate(ctx context.Context) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if _, ok := p.PID(); ok {
		p.Signal(unix.SIGCONT)
	}
	return p.waitGone(ctx)
}

// Freeze stops the process with SIGSTOP and returns when it has stopped: connections to its sockets succeed, but it
// does not answer.
func (p Process) Freeze() error { return p.stop(unix.SIGSTOP, true) }

// Frozen reports whether the process is stopped.
func (p Process) Frozen() bool {
	pid, alive := p.PID()
	stat, err := readStat(pid)
	return alive && err == nil && stat.state == 'T'
}

// Thaw continues a frozen process and returns when it runs again.
func (p Process) Thaw() error { return p.stop(unix.SIGCONT, false) }

func (p Process) stop(sig unix.Signal, stopped bool) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return Poll(ctx, fmt.Sprintf("%s to obey %s", p.title, unix.SignalName(sig)), func() bool {
		_, alive := p.PID()
		return !alive || p.Frozen() == stopped
	})
}

// Await is [Await] for what the process is to do: it fails at once if the process has ended.
func (p Process) Await(ctx context.Context, what string, try func() error) error {
	ended := false
	err := Await(ctx, p.title+" "+what, func() error {
		if _, alive := p.PID(); !alive {
			ended = true
			return nil
		}
		return try()
	})
	if ended {
		return fmt.Errorf("testbed: waiting for %s %s: it has ended", p.title, what)
	}
	return err
}

func (p Process) waitGone(ctx context.Context) error {
	err := Poll(ctx, p.title+" to end", func() bool { _, ok := p.PID(); return !ok })
	if err != nil {
		return err
	}
	return os.RemoveAll(p.pidFile)
}
