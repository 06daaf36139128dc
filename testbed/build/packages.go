package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/criproxy/criproxy/testbed/host"
)

// Packages makes targets of the main Makefile (deb, rpm, dist), with a version and for an architecture, into a folder.
func Packages(ctx context.Context, version, arch, dist string, targets ...string) error {
	source, err := SourceDir()
	if err != nil {
		return err
	}
	return packages(ctx, filepath.Dir(source), version, arch, dist, targets...)
}

func packages(ctx context.Context, root, version, arch, dist string, targets ...string) error {
	args := append([]string{"-s", "-C", root, "VERSION=" + version, "ARCHS=" + arch, "DIST=" + dist}, targets...)
	cmd := host.CommandWithin(ctx, buildTimeout, "make", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("testbed: building the packages: %w\n%s", err, out)
	}
	return nil
}
