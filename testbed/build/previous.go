package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/criproxy/criproxy/testbed/host"
)

// beforeTheFirst is the previous release until there is a tag: the last commit before the work on 1.0 began.
const beforeTheFirst = "6706e41bd87ff82b1bcdc692c4ad95adede010d7"

// ErrNoHistory says that the previous release cannot be built here.
var ErrNoHistory = errors.New("testbed: this checkout lacks the history from which the previous release is built: git fetch --unshallow --tags")

// Previous returns the sources of the previous release, from the history of this checkout, and its name: the newest tag
// vX.Y.Z before this commit or, without one, a commit. The folder is in the testbed's cache.
var Previous = sync.OnceValues(func() (struct{ Name, Dir string }, error) {
	var p struct{ Name, Dir string }
	source, err := SourceDir()
	if err != nil {
		return p, err
	}
	git := func(args ...string) (string, error) {
		cmd := host.Command(context.Background(), "git", args...)
		cmd.Dir = filepath.Dir(source)
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	p.Name = beforeTheFirst[:12]
	commit := beforeTheFirst
	if tags, err := git("tag", "--merged", "HEAD^", "--list", "v[0-9]*", "--sort=-v:refname"); err == nil {
		for tag := range strings.Lines(tags) {
			if tag = strings.TrimSpace(tag); !strings.Contains(tag, "-") { // not a release candidate
				p.Name, commit = tag, tag
				break
			}
		}
	}
	if commit, err = git("rev-parse", "-q", "--verify", commit+"^{commit}"); err != nil {
		return p, fmt.Errorf("%w (%s)", ErrNoHistory, p.Name)
	}
	cache, err := CacheDir()
	if err != nil {
		return p, err
	}
	p.Dir = filepath.Join(cache, "previous-"+commit[:12])
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return p, err
	}
	unlock, err := host.Lock(context.Background(), func() {}, p.Dir+".lock")
	if err != nil {
		return p, fmt.Errorf("testbed: waiting for another process with the previous release: %w", err)
	}
	defer unlock()
	if isDir(p.Dir) {
		return p, nil
	}
	half := p.Dir + ".half"
	if err := errors.Join(os.RemoveAll(half), os.MkdirAll(half, 0o755)); err != nil {
		return p, err
	}
	cmd := host.Command(context.Background(), "sh", "-c", `git archive "$1" | tar -x -C "$2"`, "sh", commit, half)
	cmd.Dir = filepath.Dir(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return p, fmt.Errorf("testbed: getting the sources of %s: %w\n%s", p.Name, err, out)
	}
	return p, os.Rename(half, p.Dir)
})

// stamps gives a criproxy the version "previous". The package with the version had another path before 1.0; the linker
// leaves out what a program does not have.
const stamps = "-X github.com/criproxy/criproxy/internal/settings/config.Version=previous -X github.com/criproxy/criproxy/internal/config.Version=previous"

// PreviousProxy builds the previous release's criproxy, without the race detector, and returns the path of the program.
var PreviousProxy = sync.OnceValues(func() (string, error) {
	p, err := Previous()
	if err != nil {
		return "", err
	}
	program := filepath.Join(p.Dir, "bin", "criproxy")
	cmd := host.CommandWithin(context.Background(), buildTimeout, "go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace",
		"-ldflags", stamps, "-o", program, "./cmd/criproxy")
	cmd.Dir, cmd.Env = p.Dir, Env(os.Environ(), false)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("testbed: building criproxy %s: %w\n%s", p.Name, err, host.LastLines(string(out), 20))
	}
	return program, nil
})

// PreviousPackages makes targets of the previous release's Makefile, as [Packages] does of this one's.
func PreviousPackages(ctx context.Context, version, arch, dist string, targets ...string) error {
	p, err := Previous()
	if err != nil {
		return err
	}
	return packages(ctx, p.Dir, version, arch, dist, targets...)
}
