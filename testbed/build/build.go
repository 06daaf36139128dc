package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/testbed/host"
)

// buildTimeout bounds one build. The longest is that of Kubernetes from nothing, on a machine that is busy.
const buildTimeout = 20 * time.Minute

// build returns the cache folder of c, and builds c first if there is none. A folder with the final name
// is complete: build makes it under another name and renames it.
func build(ctx context.Context, progress io.Writer, c component, source, cache string) (string, error) {
	version, err := c.version(source)
	if err != nil {
		return "", err
	}
	key, err := c.key(source, version)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, key)
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("testbed: making the cache folder (set CRIPROXY_TESTBED_CACHE to put it elsewhere): %w", err)
	}
	unlock, err := host.Lock(ctx, func() {
		fmt.Fprintf(progress, "testbed: waiting for another process that builds %s\n", c.name)
	}, filepath.Join(cache, c.name+".lock"))
	if err != nil {
		return "", fmt.Errorf("testbed: waiting for the build of %s: %w", c.name, err)
	}
	defer unlock()
	if isDir(dir) {
		return dir, nil // another process built it while we waited
	}

	// We hold the lock, so a process that died has left this half-built folder.
	half := filepath.Join(cache, ".building-"+c.name)
	if err := os.RemoveAll(half); err != nil {
		return "", fmt.Errorf("testbed: removing a half-built %s: %w", c.name, err)
	}
	defer os.RemoveAll(half)
	fmt.Fprintf(progress, "testbed: building %s %s ...\n", c.name, version)
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	if err := goBuild(ctx, c, source, version, half); err != nil {
		return "", err
	}
	if err := os.Rename(half, dir); err != nil {
		return "", fmt.Errorf("testbed: storing %s: %w", c.name, err)
	}
	fmt.Fprintf(progress, "testbed: building %s %s ... %.0fs\n", c.name, version, time.Since(started).Seconds())
	return dir, nil
}

func goBuild(ctx context.Context, c component, source, version, out string) error {
	tool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("testbed: building %s: no go command in PATH (it is needed to build the runtimes)", c.name)
	}
	args := c.args(version, out)
	if c.patch != nil {
		dir, err := os.MkdirTemp("", "patch-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		mod, err := c.patch.apply(ctx, c, source, dir)
		if err != nil {
			return fmt.Errorf("testbed: patching %s: %w", c.name, err)
		}
		args = append([]string{args[0], "-modfile", mod}, args[1:]...)
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = filepath.Join(source, c.dir)
	// A Go compiler spends a fifth of its time collecting garbage. Of C there is SQLite for CRI-O, which is not to be fast.
	cmd.Env = append(Env(os.Environ(), c.cgo), "GOGC=off", "GOMEMLIMIT=2GiB", "CGO_CFLAGS=-O0")
	cmd.Stdout, cmd.Stderr = &output, &output
	// The compilers must not outlive a canceled build.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err := cmd.Run(); err != nil {
		hint := "the Go module proxy must be reachable the first time"
		if c.cgo {
			hint = "it needs a C compiler; " + hint
		}
		return fmt.Errorf("testbed: building %s %s in %s: %w (%s)\n%s",
			c.name, version, cmd.Dir, errors.Join(ctx.Err(), err), hint, host.LastLines(output.String(), 20))
	}
	if c.c != "" {
		if err := cBuild(ctx, c, source, filepath.Join(out, c.binaries[len(c.binaries)-1])); err != nil {
			return fmt.Errorf("testbed: building %s %s: %w", c.name, version, err)
		}
	}
	for _, name := range c.binaries {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			return fmt.Errorf("testbed: building %s %s: go build made no %s", c.name, version, name)
		}
	}
	return nil
}

// cBuild builds the C binary of a module that go build has fetched.
func cBuild(ctx context.Context, c component, source, out string) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", c.module)
	cmd.Dir, cmd.Env = filepath.Join(source, c.dir), Env(os.Environ(), c.cgo)
	dir, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("finding the sources of %s: %w", c.module, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), c.c))
	if err != nil {
		return err
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	if text, err := exec.CommandContext(ctx, cc, append([]string{"-O2", "-o", out}, files...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", cc, c.c, err, host.LastLines(string(text), 20))
	}
	return nil
}

// Env returns environ without variables that would change the result of a build: the caller's flags and targets, and a
// go.work above, to which the nested modules do not belong. It keeps the variables for fetching modules (GOPROXY,
// GOMODCACHE, ...).
func Env(environ []string, cgo bool) []string {
	surprises := []string{"GOFLAGS", "GOWORK", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GODEBUG", "GO111MODULE", "GO_EXTLINK_ENABLED"}
	env := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(surprises, name) || strings.HasPrefix(name, "CGO_")
	})
	if cgo {
		env = append(env, "CGO_ENABLED=1")
	} else {
		env = append(env, "CGO_ENABLED=0")
	}
	return append(env, "GOFLAGS=", "GOWORK=off")
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
