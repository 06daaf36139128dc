package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TryOverlay mounts an overlay below dir and unmounts it. It fails if the kernel has no overlayfs, or if
// dir is on a file system that cannot be an upper layer, such as another overlay.
func TryOverlay(dir string) error {
	probe, err := os.MkdirTemp(dir, "overlay-")
	if err != nil {
		return fmt.Errorf("testbed: probing for overlayfs: %w", err)
	}
	defer os.RemoveAll(probe)
	at := func(name string) string { return filepath.Join(probe, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			return fmt.Errorf("testbed: probing for overlayfs: %w", err)
		}
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", at("lower"), at("upper"), at("work"))
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, opts); err != nil {
		return fmt.Errorf("testbed: mounting an overlay in %s: %w", dir, err)
	}
	// A file must be writable: some file systems accept the mount and nothing else.
	return errors.Join(os.WriteFile(filepath.Join(at("merged"), "file"), nil, 0o644), unix.Unmount(at("merged"), unix.MNT_DETACH))
}
