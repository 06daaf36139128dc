package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProxyConfig says what criproxy to run. Program and YAML are needed; the zero value of everything else
// works.
type ProxyConfig struct {
	// Dir is the folder for everything the instance makes: its socket, its log, what it remembers. Destroy
	// removes it. Empty means a new one in the temporary folder. It must be short.
	Dir string
	// Program is what BuildProxy returned.
	Program string
	// YAML is its configuration file, without listen and stateDir.
	YAML string
	// Flags are put behind those that it has anyway.
	Flags []string
}

// A Proxy is one running criproxy, built from this checkout.
//
// Methods may be called from any goroutine, but those that change its state one at a time.
type Proxy struct {
	ProxyConfig // as it was started, defaults filled in; not to be changed
	process     Process
}

const (
	proxyConfigName = "criproxy.yaml"
	proxySocketName = "criproxy.sock"
)

// StartProxy starts an instance and returns when it answers CRI calls. When it does not come up, what was
// made is taken away again, and the error holds the end of its log.
func StartProxy(ctx context.Context, config ProxyConfig) (*Proxy, error) {
	var err error
	if config.Dir == "" {
		config.Dir, err = os.MkdirTemp(shortTemp(), tempDirPrefix)
	} else {
		config.Dir, err = filepath.Abs(config.Dir)
	}
	if err == nil {
		err = ClaimDir(config.Dir)
	}
	if err == nil {
		config.Dir, err = filepath.EvalSymlinks(config.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("testbed: making the folder of criproxy: %w", err)
	}
	p := &Proxy{ProxyConfig: config}
	p.process = Process{Name: "criproxy", PidFile: p.at("criproxy.pid"), LogFile: p.at("criproxy.log")}
	if err = p.Configure(config.YAML); err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Destroy(ctx))
	}
	return p, nil
}

func (p *Proxy) at(name string) string { return filepath.Join(p.Dir, name) }

// Start starts the process, the first time or again after Kill or Terminate, and returns when it answers.
func (p *Proxy) Start(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	return WaitReady(ctx, p.process, p.Socket())
}

// Launch starts the process, and returns before it answers: without its primary it does not answer all.
func (p *Proxy) Launch() error {
	argv := append([]string{
		p.Program, "-config", p.at(proxyConfigName), "-listen", p.Socket(), "-state-dir", p.at("state"), "-logtostderr", "-v", "4",
	}, p.Flags...)
	// A data race ends it, so that it cannot go unnoticed.
	return p.process.Start(argv, append(cleanEnviron("GORACE"), "GORACE=halt_on_error=1"))
}

// Socket returns the path of the socket that it serves.
func (p *Proxy) Socket() string { return p.at(proxySocketName) }

// Admin is where its admin socket is.
func (p *Proxy) Admin() string { return AdminOf(p.Socket()) }

// AdminOf is where a criproxy that listens at a path, NAME.sock, has its admin socket unless it is told otherwise.
func AdminOf(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".admin.sock" }

// Endpoint returns the socket as kubelet and crictl want it: unix:///...
func (p *Proxy) Endpoint() string { return "unix://" + p.Socket() }

// Configure replaces its configuration file, which it reads again at once, as it does when it is started later.
func (p *Proxy) Configure(yaml string) error {
	// It must never read half of it.
	half := p.at("half.yaml")
	err := os.WriteFile(half, []byte(yaml), 0o644)
	if err == nil {
		err = os.Rename(half, p.at(proxyConfigName))
	}
	if err != nil {
		return fmt.Errorf("testbed: writing criproxy's configuration: %w", err)
	}
	return nil
}

// HandOver has it hand its sockets over to a new process, and returns when that serves. The old one goes on until its
// calls have ended; gone reports whether it has.
func (p *Proxy) HandOver(ctx context.Context) (gone func() bool, err error) {
	old := p.process
	old.PidFile += ".old"
	pid, _ := p.PID()
	if err := old.adopt(pid); err != nil {
		return nil, err
	}
	_, at, err := p.LogLines(0)
	if err != nil {
		return nil, err
	}
	if err := p.process.Signal(unix.SIGUSR2); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	err = poll(ctx, "criproxy to hand over", func() bool {
		refused, _, _ := p.LogLines(at, "No handover")
		serving, _, _ := p.LogLines(at, `"Serving"`)
		return len(refused)+len(serving) > 0
	})
	if err != nil {
		return nil, err
	}
	lines, _, err := p.LogLines(at, "Handing over to a new process", " pid=")
	if err != nil || len(lines) != 1 {
		return nil, fmt.Errorf("testbed: criproxy did not hand over (%v)\n%s", err, p.process.LogTail(20))
	}
	_, text, _ := strings.Cut(lines[0], " pid=")
	text, _, _ = strings.Cut(text, " ")
	if pid, err = strconv.Atoi(text); err == nil {
		err = p.process.adopt(pid)
	}
	return func() bool { _, alive := old.PID(); return !alive }, err
}

// Destroy ends it and removes its folder. It works in any state and may be called twice.
func (p *Proxy) Destroy(ctx context.Context) error {
	p.process.Terminate(ctx) // what fails here Clean makes up for
	return Clean(p.Dir)
}
