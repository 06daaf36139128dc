package testbed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a daemon that outlives whoever started it, and is known by its pid file alone: another
// program can open the same file and go on with it. A pid that was given to somebody else meanwhile is
// noticed by its start time.
//
// Start must not be called twice at once; everything else may be called at any time.
type Process struct {
	Name    string // for messages
	PidFile string
	LogFile string // gets standard output and standard error, appended
}

// Start runs argv in a session of its own, with standard input closed. It returns when the process
// exists, which says nothing about how it does.
func (p Process) Start(argv, env []string) error {
	if pid, ok := p.PID(); ok {
		return fmt.Errorf("testbed: starting %s: it is already running as process %d", p.Name, pid)
	}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("testbed: starting %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	cmd.Dir = filepath.Dir(p.PidFile)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	// A daemon must not keep what its starter has open by inheritance: that may be a lock, as under flock(1). Go's own
	// files are not passed on anyway. A kernel older than 5.11 cannot do it, and then it keeps them.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("testbed: starting %s: %w", p.Name, err)
	}
	go cmd.Wait() // reaps it, should it end before we do
	if err := p.adopt(cmd.Process.Pid); err != nil {
		unix.Kill(cmd.Process.Pid, unix.SIGKILL)
		return fmt.Errorf("%w\n%s", err, p.LogTail(10))
	}
	return nil
}

// adopt takes note that a process is this one from now on.
func (p Process) adopt(pid int) error {
	stat, err := readStat(pid)
	if err == nil {
		err = os.WriteFile(p.PidFile, fmt.Appendf(nil, "%d %s\n", pid, stat.start), 0o644)
	}
	if err != nil {
		return fmt.Errorf("testbed: noting the process id of %s: %w", p.Name, err)
	}
	return nil
}

// PID returns the process's id, and whether it is alive. A stopped process is alive, a zombie is not.
func (p Process) PID() (int, bool) {
	data, err := os.ReadFile(p.PidFile)
	if err != nil {
		return 0, false
	}
	first, start, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		return 0, false
	}
	stat, err := readStat(pid)
	return pid, err == nil && stat.start == start && stat.state != 'Z' && stat.state != 'X'
}

// Signal sends sig. It is no error for the signals that end a process if there is none any more.
func (p Process) Signal(sig unix.Signal) error {
	pid, ok := p.PID()
	if !ok {
		if sig == unix.SIGKILL || sig == unix.SIGTERM {
			return nil
		}
		return fmt.Errorf("testbed: sending %s to %s: it is not running", unix.SignalName(sig), p.Name)
	}
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("testbed: sending %s to %s (process %d): %w", unix.SignalName(sig), p.Name, pid, err)
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

// Terminate asks the process to end with SIGTERM and returns when it is gone. A frozen process is thawed,
// because it would not hear.
func (p Process) Terminate(ctx context.Context) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if _, ok := p.PID(); ok {
		p.Signal(unix.SIGCONT)
	}
	return p.waitGone(ctx)
}

// Freeze stops the process with SIGSTOP and returns when it stands still: its sockets still accept
// connections, and nothing answers.
func (p Process) Freeze() error { return p.stop(unix.SIGSTOP, true) }

// Frozen reports whether the process is stopped.
func (p Process) Frozen() bool {
	pid, alive := p.PID()
	stat, err := readStat(pid)
	return alive && err == nil && stat.state == 'T'
}

// Thaw lets a frozen process go on and returns when it does.
func (p Process) Thaw() error { return p.stop(unix.SIGCONT, false) }

func (p Process) stop(sig unix.Signal, stopped bool) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return poll(ctx, fmt.Sprintf("%s to obey %s", p.Name, unix.SignalName(sig)), func() bool {
		_, alive := p.PID()
		return !alive || p.Frozen() == stopped
	})
}

func (p Process) waitGone(ctx context.Context) error {
	err := poll(ctx, p.Name+" to end", func() bool { _, ok := p.PID(); return !ok })
	if err != nil {
		return err
	}
	return os.RemoveAll(p.PidFile)
}

// LogTail returns the last n lines of the log, for error messages.
func (p Process) LogTail(n int) string {
	data, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("(end of %s:)\n%s", p.LogFile, lastLines(string(data), n))
}

// poll asks done every few milliseconds until it says yes.
func poll(ctx context.Context, what string, done func() bool) error {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: waiting for %s: %w", what, ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}
