package testbed

import (
	"context"
	"path/filepath"
)

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
