package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/testbed/build"
)

// A contender is a path from a client to backends.
type contender struct {
	name string
	two  bool // it has two backends with half of the containers each, instead of one with all
	// variant: it is criproxy with one thing changed, which a report of all contenders leaves to the figures for programs.
	variant bool
	// needs returns what the contender lacks on this machine. nil: nothing.
	needs func(context.Context, *harness) error
	// command returns the command line, for a folder and the sockets of its backends. nil: the client connects to the
	// backend directly.
	command func(h *harness, dir, socket string, backends []string) (*exec.Cmd, error)
}

const (
	direct  = "direct"
	stock   = "grpc-proxy"
	limit   = "HAProxy" // only moves bytes
	mover   = "nginx"   // also only moves bytes
	koord   = "KoordRuntimeProxy"
	ours    = "criproxy"
	bare    = "criproxy, no recorder"
	two     = "criproxy, 2 runtimes"
	twoBare = "criproxy, 2 runtimes, no recorder"
	native  = "criproxy, 2 runtimes, -ids native"

	capturing = "criproxy, capture"
)

// contenders are all contenders, the baseline first.
var contenders = []contender{
	{name: direct},
	{name: stock, command: func(_ *harness, _, socket string, backends []string) (*exec.Cmd, error) {
		return exec.Command(os.Args[0], "stock", "-socket", socket, "-connect", backends[0]), nil
	}},
	{name: mover, needs: program("nginx"), command: nginx},
	{name: limit, needs: program("haproxy"), command: haproxy},
	{name: koord, needs: buildKoord, command: koordinator},
	{name: ours, command: criproxy()},
	{name: bare, variant: true, command: criproxy("-flight-recorder", "-1")},
	{name: capturing, variant: true, command: criproxy("-capture", "DIR/calls.jsonl")},
	{name: "criproxy, hooks", variant: true, command: criproxy("-hooks", "DIR/hooks")},
	{name: two, two: true, command: criproxy()},
	{name: twoBare, two: true, variant: true, command: criproxy("-flight-recorder", "-1")},
	{name: native, two: true, variant: true, command: criproxy("-ids", "native")},
}

// criproxy returns a command that runs criproxy with additional flags, in which DIR stands for its folder.
func criproxy(flags ...string) func(*harness, string, string, []string) (*exec.Cmd, error) {
	return func(h *harness, dir, socket string, backends []string) (*exec.Cmd, error) {
		connect := backends[0]
		if len(backends) > 1 {
			connect += ",two.test:" + backends[1]
		}
		args := []string{"-connect", connect, "-listen", socket, "-state-dir", filepath.Join(dir, "state"), "-hooks", "none"}
		for _, f := range flags {
			args = append(args, strings.Replace(f, "DIR", dir, 1))
		}
		return exec.Command(h.program, args...), nil
	}
}

func nginx(_ *harness, dir, socket string, backends []string) (*exec.Cmd, error) {
	config := fmt.Sprintf(`daemon off; master_process off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/log;
events { worker_connections 1024; }
http {
	access_log off; client_max_body_size 0; client_body_buffer_size 128k; keepalive_requests 1000000000; keepalive_timeout 1d;
	http2_max_concurrent_streams 1024;
	client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	upstream runtime { server unix:%[3]s; keepalive 128; keepalive_requests 1000000000; keepalive_timeout 1d; }
	server { listen unix:%[2]s http2; location / { grpc_pass grpc://runtime; grpc_read_timeout 1d; grpc_send_timeout 1d; } }
}
`, dir, socket, backends[0])
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return exec.Command("nginx", "-p", dir, "-c", file), nil
}

func haproxy(_ *harness, dir, socket string, backends []string) (*exec.Cmd, error) {
	config := fmt.Sprintf(`global
	maxconn 1024
defaults
	mode http
	timeout connect 5s
	timeout client 1d
	timeout server 1d
frontend cri
	bind unix@%s proto h2
	default_backend runtime
backend runtime
	http-reuse always
	server one unix@%s proto h2
`, socket, backends[0])
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return exec.Command("haproxy", "-db", "-q", "-f", file), nil
}

// koordinator returns KoordRuntimeProxy without plugins. It looks for plugins below /etc, and would make a folder there:
// it sees an empty one.
func koordinator(h *harness, dir, socket string, backends []string) (*exec.Cmd, error) {
	etc := filepath.Join(dir, "etc")
	if err := os.Mkdir(etc, 0o700); err != nil {
		return nil, err
	}
	return exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc && exec "$@"`, etc,
		h.koord, "--koord-runtimeproxy-endpoint", socket, "--remote-runtime-service-endpoint", backends[0]), nil
}

// A running is a process that we have started, which serves a socket.
type running struct {
	contender
	socket string
	cmd    *exec.Cmd // nil: direct
	said   bytes.Buffer
	ended  chan struct{}
}

// start runs a command and returns when its socket accepts connections.
func start(ctx context.Context, c contender, cmd *exec.Cmd, socket string) (*running, error) {
	r := &running{contender: c, socket: socket, cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &r.said, &r.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_ = os.Remove(socket) // a contender that was killed has left it, and not every program removes it
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	go func() {
		_ = cmd.Wait() // the process is killed in the end; if it ends earlier, its output says why
		close(r.ended)
	}()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			return r, conn.Close()
		}
		select {
		case <-r.ended:
			return nil, fmt.Errorf("%s ended instead of serving %s; its output:\n%s", c.name, socket, r.said.String())
		case <-ctx.Done():
			r.stop()
			return nil, ctx.Err()
		default:
		}
	}
	r.stop()
	return nil, fmt.Errorf("%s does not serve %s; its output:\n%s", c.name, socket, r.said.String())
}

// stop ends the process, and waits until it has ended.
func (r *running) stop() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.ended:
	case <-time.After(5 * time.Second):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
}

// called returns the contender with the given name.
func called(name string) contender {
	return contenders[slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })]
}

// program returns a check that a program of Debian's package of the same name is in PATH.
func program(name string) func(context.Context, *harness) error {
	return func(context.Context, *harness) error {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("not installed: apt-get install %s", name)
		}
		return nil
	}
}

// buildKoord builds KoordRuntimeProxy.
func buildKoord(ctx context.Context, h *harness) error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root")
	}
	all, err := build.Get(ctx, h.progress, build.Koordinator)
	h.koord = all.KoordProxy
	return err
}

// foreign reports whether c is a program of others, which may lack what a work needs.
func (c contender) foreign() bool { return c.needs != nil }

// missing says what c lacks on this machine, and is empty if it lacks nothing.
func (h *harness) missing(ctx context.Context, c contender) string {
	if c.needs == nil {
		return ""
	}
	if err := c.needs(ctx, h); err != nil {
		return strings.SplitN(err.Error(), "\n", 2)[0]
	}
	return ""
}

// startContender runs c in front of backends, on the given socket, or on a new one if that is empty.
func (h *harness) startContender(ctx context.Context, c contender, socket string, backends []string) (*running, error) {
	if c.command == nil {
		return &running{contender: c, socket: backends[0]}, nil
	}
	h.started++
	dir := filepath.Join(h.dir, fmt.Sprint(h.started))
	for _, d := range []string{dir, filepath.Join(dir, "hooks")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if socket == "" {
		socket = filepath.Join(dir, "s")
	}
	cmd, err := c.command(h, dir, socket, backends)
	if err != nil {
		return nil, err
	}
	cmd.Dir = dir
	return start(ctx, c, cmd, socket)
}

// startBackend runs a backend.
func (h *harness) startBackend(ctx context.Context, name string, containers int, flags ...string) (*running, error) {
	h.started++
	socket := filepath.Join(h.dir, fmt.Sprint("b", h.started))
	args := append([]string{"backend", "-name", name, "-socket", socket, "-containers", fmt.Sprint(containers)}, flags...)
	return start(ctx, contender{name: "backend " + name}, exec.Command(os.Args[0], args...), socket)
}
