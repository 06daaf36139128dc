package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Packages makes targets of the main Makefile (deb, rpm, dist), with a version and for an architecture, into a folder.
func Packages(ctx context.Context, version, arch, dist string, targets ...string) error {
	source, err := SourceDir()
	if err != nil {
		return err
	}
	args := append([]string{"-s", "-C", filepath.Dir(source), "VERSION=" + version, "ARCHS=" + arch, "DIST=" + dist}, targets...)
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("testbed: building the packages: %w\n%s", err, out)
	}
	return nil
}
