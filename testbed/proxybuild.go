package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
