package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A patch replaces text in one file of a component's module, so that the component runs on machines like ours.
type patch struct{ file, old, new string }

// apply copies c's module into a folder, patches the copy, and returns the path of a go.mod next to it that replaces the
// module with the copy.
func (p patch) apply(ctx context.Context, c component, source, dir string) (string, error) {
	pin := filepath.Join(source, c.dir)
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", c.module)
	cmd.Dir, cmd.Env = pin, Env(os.Environ(), c.cgo)
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", c.module, err)
	}
	patched := filepath.Join(dir, "module")
	if err := os.CopyFS(patched, os.DirFS(module.Dir)); err != nil {
		return "", err
	}
	file := filepath.Join(patched, p.file)
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if strings.Count(string(text), p.old) != 1 {
		return "", fmt.Errorf("%s: want %q once", p.file, p.old)
	}
	mod, err := os.ReadFile(filepath.Join(pin, "go.mod"))
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile(filepath.Join(pin, "go.sum"))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "go.mod"), errors.Join(
		os.Remove(file), // modules are read-only
		os.WriteFile(file, []byte(strings.Replace(string(text), p.old, p.new, 1)), 0o644),
		os.WriteFile(filepath.Join(dir, "go.mod"), fmt.Appendf(mod, "\nreplace %s => %s\n", c.module, patched), 0o644),
		os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644),
	)
}
