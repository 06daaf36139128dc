package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A contender is a path from a client to backends.
type contender struct {
	name string
	two  bool // it has two backends with half of the containers each, instead of one with all
	// program must be in PATH; Debian's package of that name has it. Empty: the contender is our own.
	program string
	// command returns the command line, for a folder and the sockets of its backends. nil: the client connects to the
	// backend directly.
	command func(h *harness, dir, socket string, backends []string) (*exec.Cmd, error)
}

const (
	direct  = "direct"
	stock   = "grpc-proxy"
	limit   = "HAProxy" // only moves bytes
	mover   = "nginx"   // also only moves bytes
	ours    = "criproxy"
	bare    = "criproxy, no recorder"
	two     = "criproxy, 2 runtimes"
	twoBare = "criproxy, 2 runtimes, no recorder"
	native  = "criproxy, 2 runtimes, -ids native"
)

// contenders are all contenders, the baseline first.
var contenders = []contender{
	{name: direct},
	{name: stock, command: func(_ *harness, _, socket string, backends []string) (*exec.Cmd, error) {
		return exec.Command(os.Args[0], "stock", "-socket", socket, "-connect", backends[0]), nil
	}},
	{name: mover, program: "nginx", command: nginx},
	{name: limit, program: "haproxy", command: haproxy},
	{name: ours, command: criproxy()},
	{name: bare, command: criproxy("-flight-recorder", "-1")},
	{name: "criproxy, capture", command: criproxy("-capture", "DIR/calls.jsonl")},
	{name: "criproxy, hooks", command: criproxy("-hooks", "DIR/hooks")},
	{name: two, two: true, command: criproxy()},
	{name: twoBare, two: true, command: criproxy("-flight-recorder", "-1")},
	{name: native, two: true, command: criproxy("-ids", "native")},
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

// installed reports whether this machine has the program of c.
func (c contender) installed() bool {
	if c.program == "" {
		return true
	}
	_, err := exec.LookPath(c.program)
	return err == nil
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
