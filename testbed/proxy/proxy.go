package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/metrics"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Config configures a criproxy. Program and YAML are required; all other fields may be zero.
type Config struct {
	// Dir is the folder for the instance's files: its socket, log and memory. Destroy removes it. Empty means
	// a new one in the temporary folder. Its path must be short.
	Dir string
	// Program is the path of criproxy, from build.Proxy.
	Program string
	// YAML is its configuration file, without listen and stateDir.
	YAML string
	// Flags are appended to its other flags.
	Flags []string
}

// A Proxy is a criproxy, built from this checkout.
//
// Methods may be called from any goroutine, but only one at a time of those that change the state.
type Proxy struct {
	Config       // with defaults; must not be changed
	host.Process // criproxy itself; after a handover its successor
}

// recordVariable names a folder to which each criproxy writes its calls, for criproxy why: see make why.
const recordVariable = "CRIPROXY_TESTBED_RECORD"

const (
	configName = "criproxy.yaml"
	socketName = "criproxy.sock"
	// The socket with the longest path.
	longestSocket = "criproxy.admin.sock"
)

// Start starts an instance and returns when it answers CRI calls. If it does not come up, Start removes
// it again, and the error holds the end of its log.
func Start(ctx context.Context, config Config) (*Proxy, error) {
	var err error
	config.Dir, err = host.NewDir(config.Dir, longestSocket)
	if err != nil {
		return nil, fmt.Errorf("testbed: making the folder of criproxy: %w", err)
	}
	p := &Proxy{Config: config, Process: host.NewProcess("criproxy", filepath.Join(config.Dir, "criproxy"))}
	if err = p.Configure(config.YAML); err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Destroy(ctx))
	}
	return p, nil
}

func (p *Proxy) at(name string) string { return filepath.Join(p.Dir, name) }

// Start starts the process, or starts it again after Kill or Terminate, and returns when it answers.
func (p *Proxy) Start(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	return runtimes.WaitReady(ctx, p.Process, p.Socket())
}

// Launch starts the process, and returns before it answers: without its primary it cannot answer all calls.
func (p *Proxy) Launch() error {
	argv := append([]string{
		p.Program, "-config", p.at(configName), "-listen", p.Socket(), "-state-dir", p.at("state"), "-logtostderr", "-v", "4",
	}, p.Flags...)
	if dir := os.Getenv(recordVariable); dir != "" {
		argv = append(argv, "-capture", filepath.Join(dir, fmt.Sprintf("%s-%d.jsonl.zst", filepath.Base(p.Dir), time.Now().UnixNano())))
	}
	// A data race ends the process, so that it cannot go unnoticed.
	return p.Process.Start(argv, append(host.Environ("GORACE"), "GORACE=halt_on_error=1"))
}

// Socket returns the path of the socket that it serves.
func (p *Proxy) Socket() string { return p.at(socketName) }

// Admin returns the path of its admin socket.
func (p *Proxy) Admin() string { return AdminOf(p.Socket()) }

// Endpoint returns the socket in the form of kubelet and crictl: unix:///...
func (p *Proxy) Endpoint() string { return "unix://" + p.Socket() }

// Configure replaces the configuration file. criproxy reads it at once, or when it is started.
func (p *Proxy) Configure(yaml string) error {
	if err := host.WriteWhole(p.at(configName), []byte(yaml)); err != nil {
		return fmt.Errorf("testbed: writing criproxy's configuration: %w", err)
	}
	return nil
}

// HandOver makes criproxy hand over its sockets to a new process, and returns when that process serves. The old process
// goes on until its calls have ended; gone reports whether it has ended.
func (p *Proxy) HandOver(ctx context.Context) (gone func() bool, err error) {
	old, err := p.Alias(".old")
	if err != nil {
		return nil, err
	}
	_, at, err := p.LogLines(0)
	if err != nil {
		return nil, err
	}
	if err := p.Signal(unix.SIGUSR2); err != nil {
		return nil, err
	}
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	err = host.Poll(ctx, "criproxy to hand over", func() bool {
		refused, _, _ := p.LogLines(at, "The handover failed")
		serving, _, _ := p.LogLines(at, `"Serving"`)
		return len(refused)+len(serving) > 0
	})
	if err != nil {
		return nil, err
	}
	lines, _, err := p.LogLines(at, "Handing over to a new process", " pid=")
	if err != nil || len(lines) != 1 {
		return nil, fmt.Errorf("testbed: criproxy did not hand over (%v)\n%s", err, p.LogTail(20))
	}
	_, text, _ := strings.Cut(lines[0], " pid=")
	text, _, _ = strings.Cut(text, " ")
	pid, err := strconv.Atoi(text)
	if err == nil {
		err = p.Adopt(pid)
	}
	return func() bool { _, alive := old.PID(); return !alive }, err
}

// Metrics returns its metrics.
func (p *Proxy) Metrics(ctx context.Context) (metrics.Metrics, error) { return Metrics(ctx, p.Admin()) }

// Destroy ends the process and removes its folder. It works in any state and may be called twice. The context bounds
// only the orderly part, as [host.Process.Terminate] does: once it has ended, Destroy uses force.
func (p *Proxy) Destroy(ctx context.Context) error {
	p.Terminate(ctx) // Clean removes what is left
	return host.Clean(p.Dir)
}
