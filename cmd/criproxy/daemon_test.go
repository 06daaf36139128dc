package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// A process is the real main, with a configuration file and two runtimes in memory.
type process struct {
	testing.TB
	dir, config, front string
	log                string
	env                []string // nil: the test's own
	args               []string // additional arguments
	runtimes           []*testkit.Machine
}

// newProcess returns a process that has not been started. At the end of the test it ends, if it serves.
func newProcess(t testing.TB) *process {
	dir := testkit.SocketDir(t)
	p := &process{TB: t, dir: dir, config: filepath.Join(dir, "c.yaml"), front: filepath.Join(dir, "front.sock"), log: filepath.Join(dir, "log")}
	for i, name := range []string{"", "beta.io"} {
		m := testkit.NewMachine(t, name, filepath.Join(dir, fmt.Sprintf("%d.sock", i)), fakecri.Config{})
		m.Start()
		p.runtimes = append(p.runtimes, m)
	}
	p.write("")
	t.Cleanup(func() {
		if _, serves := p.answering(); serves && !t.Failed() {
			p.end()
		}
	})
	return p
}

// startedProcess is newProcess for one that has been started.
func startedProcess(t *testing.T) *process {
	p := newProcess(t)
	p.launch()
	return p
}

// write writes the configuration, with more after the usual lines.
func (p *process) write(more string) {
	p.writeAll(fmt.Sprintf("- {name: beta.io, address: %s/1.sock}\n%s", p.dir, more))
}

// writeAll writes the configuration with the primary, and then more.
func (p *process) writeAll(more string) {
	text := fmt.Sprintf("listen: %s\nstateDir: %s\nbackends:\n- address: %s/0.sock\n%s",
		p.front, filepath.Join(p.dir, "state"), p.dir, more)
	require.NoError(p, os.WriteFile(p.config+".new", []byte(text), 0o600))
	require.NoError(p, os.Rename(p.config+".new", p.config))
}

// launch starts it and returns when it serves.
func (p *process) launch() *exec.Cmd {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p, err)
	defer log.Close() // the process has its own
	cmd := exec.Command("criproxy", append([]string{"-config", p.config, "-logtostderr"}, p.args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, p.env
	require.NoError(p, cmd.Start())
	p.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test has failed
	testkit.Eventually(p, "it serves", func() bool {
		conn, err := net.Dial("unix", config.AdminBeside(p.front)) // the last socket
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return cmd
}

func (p *process) logged(text string) int {
	data := readFile(p, p.log)
	return strings.Count(string(data), text)
}

func (p *process) connect(path string) *grpc.ClientConn {
	cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p, err)
	p.Cleanup(func() { cc.Close() }) // an error changes nothing
	return cc
}

// version makes a call that no cache answers.
func (p *process) version(cc *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(p.Context(), testkit.Patience)
	defer cancel()
	_, err := runtimeapi.NewRuntimeServiceClient(cc).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

// hammer makes calls at full rate until the function that it returns is called, which returns
// their number. A call that fails fails the test.
func (p *process) hammer() func() int64 {
	ctx, cancel := context.WithCancel(context.Background())
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := client.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{}); err != nil {
					p.Errorf("a call failed: %v", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	return func() int64 {
		cancel()
		wg.Wait()
		return calls.Load()
	}
}

// handOver makes the serving process hand over to a new one, and returns the new one. Both answer on the admin socket for
// a moment: handOver waits until the old one has ended that, just before it logs that it stops.
func (p *process) handOver() (pid int) {
	p.Helper()
	old, stopped := p.serving(), p.logged(stopping)
	require.NoError(p, syscall.Kill(old, syscall.SIGUSR2))
	testkit.Eventually(p, "the old process stops", func() bool { return p.logged(stopping) > stopped })
	pid = p.serving()
	require.NotEqual(p, old, pid)
	return pid
}

// stopping is in the log since a process no longer answers on the admin socket.
const stopping = `"Stopping"`

// end stops the serving process. A process that has just taken over may end before the one before it knows: that serves on,
// so end stops it, too.
func (p *process) end() {
	pid := p.serving()
	_ = syscall.Kill(pid, syscall.SIGTERM) // it may be about to end
	testkit.Eventually(p, "it has ended", func() bool {
		if other, ok := p.answering(); ok && other != pid {
			pid = other
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		for _, path := range []string{p.front, config.AdminBeside(p.front)} { // both, or it would remove that of the next process
			if conn, err := net.Dial("unix", path); err == nil {
				conn.Close()
				return false
			}
		}
		return true
	})
}

// serving returns the process that answers on the admin socket. A process that hands over ends
// its admin connections, so serving may need another attempt.
func (p *process) serving() (pid int) {
	testkit.Eventually(p, "the admin socket answers", func() (ok bool) { pid, ok = p.answering(); return ok })
	return pid
}

func (p *process) answering() (pid int, ok bool) {
	var v admin.Version
	_, err := admin.NewClient(config.AdminBeside(p.front)).Read(context.WithoutCancel(p.Context()), "version", &v)
	return v.PID, err == nil
}

// restartRuntime stops the second runtime, or starts it, or neither, and returns when criproxy
// has noticed.
func (p *process) restartRuntime(away, back bool) {
	noticed := func(want string) {
		testkit.Eventually(p, "the second runtime is "+want, func() bool {
			var r admin.Report
			_, err := admin.NewClient(config.AdminBeside(p.front)).Read(p.Context(), "status", &r) // a handover may cut it off
			return err == nil && r.Backends[1].State == want
		})
	}
	switch {
	case away:
		p.runtimes[1].Kill()
		noticed("gone")
	case back:
		p.runtimes[1].Start()
		noticed("up")
	}
}

// There are reloads and handovers while the second runtime is away, too: its pods stay in the
// lists, and no call fails.
func TestReloadsAndHandoversUnderLoadFailNoCall(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	p := newProcess(t)
	first := p.launch()
	before, err := os.Stat(p.front)
	require.NoError(t, err)
	stop := p.hammer()
	for i := range 50 {
		p.write(fmt.Sprintf("listBudget: %dms\n", 2000+i))
		require.NoError(t, syscall.Kill(p.serving(), syscall.SIGHUP))
		testkit.Eventually(t, "it has reloaded", func() bool { return p.logged("Reloaded the configuration") > i })
		p.restartRuntime(i == 20, i == 30)
	}
	assert.Equal(t, first.Process.Pid, p.serving())
	for i := range 10 {
		p.restartRuntime(i == 3, i == 6)
		p.handOver()
	}
	require.NoError(t, first.Wait(), "the first process ends with exit code 0")
	after, err := os.Stat(p.front)
	require.NoError(t, err)
	assert.Equal(t, before.Sys().(*syscall.Stat_t).Ino, after.Sys().(*syscall.Stat_t).Ino, "the socket's file is still the same")
	calls := stop()
	assert.Greater(t, calls, int64(60))
	t.Logf("%d calls", calls)
}

func TestAReadOnlySocketAllowsOnlyReads(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	ro := filepath.Join(p.dir, "ro.sock")
	p.write("listeners:\n- path: " + ro + "\n  mode: '0666'\n  access: [{methods: [read-only]}]\n")
	p.launch()
	info, err := os.Stat(ro)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o666), info.Mode().Perm())
	cc := p.connect(ro)
	for _, method := range everyMethod() {
		if !testkit.Endless(method) {
			assert.Equal(t, looks(method), tryOne(cc, method) != codes.PermissionDenied, method)
		}
	}
	assert.Equal(t, codes.PermissionDenied, tryOne(cc, "/containerd.services.containers.v1.Containers/List"), "other services of the runtime are not CRI")
}

// notifies returns the socket through which the process will notify systemd, until the test ends.
func (p *process) notifies() *net.UnixConn {
	p.Helper()
	path := filepath.Join(p.dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(p, err)
	p.Cleanup(func() { _ = conn.Close() }) // nothing is left to be read
	p.env = append(os.Environ(), "NOTIFY_SOCKET="+path)
	return conn
}

func TestSystemdIsNotifiedAndGetsTheSockets(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	conn := p.notifies()
	require.NoError(t, conn.SetDeadline(time.Now().Add(testkit.Patience)))
	p.launch()
	var stored []string
	for {
		text, control := make([]byte, 4096), make([]byte, 256)
		n, rights, _, _, err := conn.ReadMsgUnix(text, control)
		require.NoError(t, err)
		message := string(text[:n])
		if strings.HasPrefix(message, "READY=1") {
			break
		}
		require.Contains(t, message, "FDSTORE=1")
		messages, err := syscall.ParseSocketControlMessage(control[:rights])
		require.NoError(t, err)
		fds, err := syscall.ParseUnixRights(&messages[0])
		require.NoError(t, err)
		file := os.NewFile(uintptr(fds[0]), "")
		l, err := net.FileListener(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		stored = append(stored, l.Addr().String())
		require.NoError(t, l.Close())
	}
	assert.Equal(t, []string{p.front, config.AdminBeside(p.front)}, stored)
	require.NoError(t, syscall.Kill(p.serving(), syscall.SIGHUP))
	text := make([]byte, 4096)
	n, err := conn.Read(text)
	require.NoError(t, err)
	assert.Contains(t, string(text[:n]), "RELOADING=1\nMONOTONIC_USEC=")
	n, err = conn.Read(text)
	require.NoError(t, err)
	assert.Contains(t, string(text[:n]), "READY=1")
	p.end()
	assert.FileExists(t, p.front, "its listener is in systemd's store")
}

// systemd waits only for its own children. It does not wait for the child of a process that hands over, but kills it in
// the middle of its calls, and does not notice when it crashes. Found on a node with systemd 252, where systemctl
// restart after an upgrade made the calls under way fail.
func TestTheSuccessorIsItsSupervisorsChild(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	conn := p.notifies()
	main := make(chan int, 10)
	go func() {
		for text := make([]byte, 4096); ; {
			n, err := conn.Read(text)
			if err != nil {
				return // it is closed
			}
			var pid int
			if _, err := fmt.Sscanf(string(text[:n]), "MAINPID=%d", &pid); err == nil {
				main <- pid
			}
		}
	}()
	first := p.launch()
	done, thaw := p.hangs() // the old process stays until the call ends
	before := first.Process.Pid
	var successors []int
	for range 2 {
		require.NoError(t, syscall.Kill(before, syscall.SIGUSR2))
		pid := <-main
		require.NotEqual(t, before, pid)
		assert.Equal(t, os.Getpid(), parentOf(t, pid), "it is a child of the one before it, %d", before)
		testkit.Eventually(t, "it serves", func() bool { return p.serving() == pid })
		before, successors = pid, append(successors, pid)
	}
	thaw()
	require.NoError(t, <-done, "the call goes on in the first process")
	require.NoError(t, first.Wait())
	p.end()
	for _, pid := range successors {
		_, err := syscall.Wait4(pid, nil, 0, nil)
		require.NoError(t, err)
	}
}

func parentOf(t *testing.T, pid int) (parent int) {
	t.Helper()
	stat := readFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ") // after the name
	var state string
	_, err := fmt.Sscan(rest, &state, &parent)
	require.NoError(t, err)
	return parent
}

func TestAllThreadsOfAProcessMayBeWokenLate(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "how late threads may be woken")
	p := startedProcess(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.serving()))
	require.NoError(t, err)
	require.Greater(t, len(threads), 2)
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns")
		if os.IsNotExist(err) {
			continue // the thread has ended
		}
		require.NoError(t, err)
		assert.Equal(t, cli.TimerSlack, strings.TrimSpace(string(slack)), "%s", thread)
	}
}

// kubelet accepts five ends of its event stream in its life, so each one counts.
func TestAHandoverEndsEventsOnce(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	ctx, cancel := context.WithCancel(bounded.Context(t))
	var ends atomic.Int32
	var events sync.Map // :: id → true
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		for ctx.Err() == nil {
			stream, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
			for err == nil {
				var e *runtimeapi.ContainerEventResponse
				if e, err = stream.Recv(); err == nil {
					events.Store(e.GetContainerId(), true)
				}
			}
			ends.Add(1)
		}
	})
	for i := range 2 {
		p.handOver()
		testkit.Eventually(t, "the old one has ended its streams", func() bool { return ends.Load() > int32(i) })
		for r, name := range []string{"", "beta.io"} {
			var made []string
			testkit.Eventually(t, "the event of a pod comes", func() bool { // the first pod may be created before kubelet has its new stream
				pod := fmt.Sprint("p", i, r, len(made))
				ran, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
					Metadata:    &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "n", Uid: pod},
					Annotations: map[string]string{"kubernetes.io/target-runtime": name},
				}})
				require.NoError(t, err)
				made = append(made, ran.GetPodSandboxId())
				return slices.ContainsFunc(made, func(id string) bool { _, ok := events.Load(id); return ok })
			})
		}
	}
	assert.EqualValues(t, 2, ends.Load())
	cancel()
	kubelet.Wait()
}
