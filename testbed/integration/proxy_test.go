package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A proxy is a running criproxy.
type proxy struct {
	socket string
	cmd    *exec.Cmd
	stderr string // the file that gets its log
	ended  chan struct{}
	err    error // of the process, once it has ended
}

// launch starts program with args, listening in dir, and returns when it accepts connections. It logs at the highest
// level, so that tests notice text that must not be in a log.
func launch(program, dir string, args ...string) (*proxy, error) {
	p := &proxy{socket: filepath.Join(dir, "criproxy.sock"), stderr: filepath.Join(dir, "criproxy.log"), ended: make(chan struct{})}
	log, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args = append([]string{"-v", "5", "-logtostderr", "-listen", p.socket, "-state-dir", filepath.Join(dir, "state")}, args...)
	p.cmd = exec.Command(program, args...)
	// A race fails the test at once: there is no need to wait for more at the end.
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// criproxy is killed when this process ends, however it ends.
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started := make(chan error)
	go func() {
		// For the kernel, the thread that started a child is its parent: the thread must live as long.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting criproxy: %w", err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("unix", p.socket)
		if err == nil {
			conn.Close()
			return p, nil
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("criproxy has ended: %w\n%s", p.err, p.log())
		default:
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("criproxy does not listen: %w\n%s", err, p.log()), p.stop())
		}
	}
}

// stop ends the proxy and reports its problems: a race, a panic, an exit code.
func (p *proxy) stop() error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("criproxy did not end in 30 seconds\n%s", p.log())
	}
	log := p.log()
	if p.err != nil || strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
		return fmt.Errorf("criproxy: %v\n%s", p.err, log)
	}
	if _, err := os.Lstat(p.socket); err == nil {
		return fmt.Errorf("criproxy left its socket %s", p.socket)
	}
	return nil
}

func (p *proxy) log() string {
	data, err := os.ReadFile(p.stderr)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// waitForAll returns when lists are complete: every runtime behind the proxy answers.
func (p *proxy) waitForAll(ctx context.Context, opts ...grpc.CallOption) error {
	conn, err := runtimes.Dial(p.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // for lists of 15 MiB on a busy machine
	defer cancel()
	err = host.Await(ctx, "criproxy to answer with whole lists", func() (err error) {
		for _, method := range []string{rt("ListPodSandbox"), rt("ListContainers"), img("ListImages")} {
			// Frames, because the answers of a test's runtime may not be messages.
			if err == nil {
				err = conn.Invoke(ctx, method, &codec.Frame{}, &codec.Frame{}, append(opts, grpc.ForceCodecV2(codec.Raw))...)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.log())
	}
	return nil
}

// startProxy starts a criproxy for one test. It is stopped when the test ends, and the test fails if it has had a
// problem.
func startProxy(t testing.TB, args ...string) *proxy {
	t.Helper()
	p, err := launch(criproxy(t), folder(t), args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, p.stop())
		if t.Failed() {
			t.Logf("criproxy's log:\n%s", host.LastLines(p.log(), 40))
		}
	})
	return p
}

// inFrontOf starts a criproxy in front of sockets, the first of them the primary, the second two.test, and
// waits until all of them answer.
func inFrontOf(t testing.TB, sockets ...string) *proxy {
	t.Helper()
	p := startProxy(t, "-connect", connect(sockets...))
	require.NoError(t, p.waitForAll(t.Context()))
	return p
}

// connect is the value of -connect for sockets.
func connect(sockets ...string) string {
	return strings.Join(sockets, ","+second+":")
}

// folder returns a folder for sockets, whose paths must be short.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "int")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}
