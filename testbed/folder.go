package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// marker is the file that says a folder is the testbed's and may be removed with all that is in it.
const marker = ".criproxy-testbed"

// ClaimDir makes dir, or takes an empty one, and marks it as the testbed's, so that Clean will remove
// it. A folder with other things in it is refused.
func ClaimDir(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("testbed: making a folder: %w", err)
	}
	if claimed(dir) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("testbed: looking into %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("testbed: %s is not empty and not a testbed's: name a new folder", dir)
	}
	text := "Made by criproxy's testbed, which removes this folder and everything in it: testbed down -dir .\n"
	if err := os.WriteFile(filepath.Join(dir, marker), []byte(text), 0o644); err != nil {
		return fmt.Errorf("testbed: marking %s: %w", dir, err)
	}
	return nil
}

func claimed(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, marker))
	return err == nil
}

// removeClaimed removes a folder of ours. It is no error if there is none.
func removeClaimed(dir string) error {
	_, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !claimed(dir) {
		return fmt.Errorf("testbed: not removing %s: the testbed did not make it (there is no %s in it)", dir, marker)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("testbed: removing %s: %w", dir, err)
	}
	return nil
}

// Instances returns the folders of all instances on this machine, whoever started them: of kubelets, which have a
// mount, of proxies that run, and of containerds, which have a bridge.
func Instances() []string {
	dirs := append(kubeletDirs(), proxyDirs()...)
	bridges, _ := bridgesOf("") // every path is below this one
	for _, b := range bridges {
		dirs = append(dirs, b.Attrs().Alias)
	}
	return dirs
}

// kubeletDirs returns the folders of kubelets.
func kubeletDirs() []string {
	var dirs []string
	for _, m := range mounts("self") {
		dir, ok := strings.CutSuffix(m.point, "/root")
		if !ok || slices.Contains(dirs, dir) {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, kubeletManifestName)); err == nil && claimed(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// instanceDirs returns where instances may be: dir, the folders in it, and wherever below it a bridge or a mount
// says that there is one.
func instanceDirs(dir string) []string {
	dirs := []string{dir}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(dir, e.Name()))
		}
	}
	bridges, _ := bridgesOf(dir)
	for _, b := range bridges {
		dirs = append(dirs, b.Attrs().Alias)
	}
	for _, kubelet := range kubeletDirs() {
		if inside(dir, kubelet) {
			dirs = append(dirs, kubelet)
		}
	}
	return dirs
}
