package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

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

// BuildProxy builds criproxy from this checkout, with the race detector if this program has it, and says where it
// is. Go's own cache makes it quick when nothing has changed.
func BuildProxy(ctx context.Context) (string, error) {
	source, err := SourceDir()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(source)
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("criproxy-%08x", hash(root)))
	args := []string{"build", "-buildvcs=false"}
	if raced {
		dir += "-race"
		args = append(args, "-race")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("testbed: making the cache folder: %w", err)
	}
	unlock, err := lock(ctx, dir+".lock", func() {})
	if err != nil {
		return "", fmt.Errorf("testbed: waiting for another build of criproxy: %w", err)
	}
	defer unlock()
	// One that is running keeps its file when a new one takes the name.
	program := filepath.Join(dir, "criproxy")
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", program+".new", "./cmd/criproxy")...)
	cmd.Dir, cmd.Env = root, buildEnv(os.Environ(), raced)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("testbed: building criproxy in %s: %w\n%s", root, errors.Join(ctx.Err(), err), lastLines(string(out), 20))
	}
	if err := os.Rename(program+".new", program); err != nil {
		return "", fmt.Errorf("testbed: storing criproxy: %w", err)
	}
	return program, nil
}

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

// LogFile returns the path of its log, which goes on over restarts.
func (p *Proxy) LogFile() string { return p.process.LogFile }

// LogLines returns the lines of its log, from offset on, that have all of words in them, and where the log ends now.
func (p *Proxy) LogLines(offset int64, words ...string) (lines []string, end int64, err error) {
	return grep(p.LogFile(), offset, words...)
}

// PID returns the process id, and whether it lives. A frozen one does.
func (p *Proxy) PID() (int, bool) { return p.process.PID() }

// Kill ends it with SIGKILL and returns when it is gone. Start brings it back.
func (p *Proxy) Kill() error { return p.process.Kill() }

// Terminate ends it with SIGTERM and returns when it is gone.
func (p *Proxy) Terminate(ctx context.Context) error { return p.process.Terminate(ctx) }

// Freeze stops it with SIGSTOP.
func (p *Proxy) Freeze() error { return p.process.Freeze() }

// Thaw ends a Freeze.
func (p *Proxy) Thaw() error { return p.process.Thaw() }

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
		refused, _, _ := p.LogLines(at, "The handover failed")
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

// Metrics returns its metrics.
func (p *Proxy) Metrics(ctx context.Context) (Metrics, error) {
	admin := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.Admin())
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://criproxy/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := admin.Do(req)
	if err != nil {
		return nil, fmt.Errorf("testbed: asking criproxy: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("testbed: asking criproxy for its metrics: %s: %w", resp.Status, err)
	}
	return parseMetrics(string(body)), nil
}

// Destroy ends it and removes its folder. It works in any state and may be called twice.
func (p *Proxy) Destroy(ctx context.Context) error {
	p.process.Terminate(ctx) // what fails here Clean makes up for
	return Clean(p.Dir)
}

// proxyDirs returns the folders of proxies that run.
func proxyDirs() []string {
	var dirs []string
	for _, pid := range pids() {
		if program(pid) != "criproxy" {
			continue
		}
		for _, arg := range command(pid) {
			if dir := filepath.Dir(arg); filepath.Base(arg) == proxyConfigName && claimed(dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// buildProxyOnce builds criproxy once for all tests of a program.
var buildProxyOnce = sync.OnceValues(func() (string, error) { return BuildProxy(context.Background()) })

// NewProxy starts criproxy, built from this checkout, with a configuration file, which need not say where to listen
// and where to keep its state. It is destroyed when the test ends. The test fails if it crashed meanwhile or had
// a data race, and shows the end of its log whenever it fails.
func NewProxy(t testing.TB, yaml string, flags ...string) *Proxy {
	t.Helper()
	program, err := buildProxyOnce()
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProxy(t.Context(), ProxyConfig{Program: program, YAML: yaml, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		data, _ := os.ReadFile(p.LogFile())
		for _, word := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
			if i := bytes.Index(data, []byte(word)); i >= 0 {
				t.Errorf("criproxy: %s", firstLines(string(data[i:]), 60))
			}
		}
		if t.Failed() {
			t.Log(p.process.LogTail(60))
		}
		if err := p.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// firstLines returns at most n lines of text, the first ones.
func firstLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimLeft(text, "\n")))
	return strings.Join(lines[:min(n, len(lines))], "")
}
