package host

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

const tempDirPrefix = "ctb-"

// maxSocketPath is what the kernel allows for the path of a socket.
const maxSocketPath = 107

// NewDir makes and claims the folder of an instance and returns its real path, by which mounts are listed. Empty means
// a new one in the temporary folder. The instance will make a socket at the relative path longest in it. NewDir
// refuses a folder whose path leaves no room for that.
func NewDir(dir, longest string) (string, error) {
	var err error
	if dir == "" {
		dir, err = TempDir(longest)
	} else {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", err
	}
	if most := maxSocketPath - len("/"+longest); len(dir) > most {
		return "", fmt.Errorf("testbed: the folder %s is too long for a socket in it: use one of at most %d bytes", dir, most)
	}
	if err := ClaimDir(dir); err != nil {
		return dir, err
	}
	return filepath.EvalSymlinks(dir)
}

// TempDir makes a new folder in which a socket at the relative path longest fits: in the temporary folder, or in /tmp
// where that one's own path is too long.
func TempDir(longest string) (string, error) {
	temp := os.TempDir()
	if len(temp)+len("/"+tempDirPrefix+"4294967295/"+longest) > maxSocketPath {
		temp = "/tmp"
	}
	return os.MkdirTemp(temp, tempDirPrefix)
}

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

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
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

// Instances returns the folders of all instances on this machine, whichever program started them: of kubelets, which
// have a mount, of proxies that run, and of containerds, which have a bridge.
func Instances() []string {
	dirs := append(kubeletDirs(), proxyDirs()...)
	bridges, _ := bridgesOf("") // every path is below this one
	for _, b := range bridges {
		dirs = append(dirs, b.Attrs().Alias)
	}
	return dirs
}

// kubeletDirs returns the folders of kubelets, whose root folder is a mount of its own.
func kubeletDirs() []string {
	var dirs []string
	for _, m := range mounts("self") {
		dir, ok := strings.CutSuffix(m.point, "/root")
		if !ok || slices.Contains(dirs, dir) {
			continue
		}
		if claimed(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// proxyDirs returns the folders of the criproxies that run with a file of a claimed folder as their configuration.
func proxyDirs() []string {
	var dirs []string
	for _, pid := range pids() {
		if program(pid) != "criproxy" {
			continue
		}
		args := command(pid)
		if i := slices.Index(args, "-config"); i >= 0 && i+1 < len(args) && claimed(filepath.Dir(args[i+1])) {
			dirs = append(dirs, filepath.Dir(args[i+1]))
		}
	}
	return dirs
}

// instanceDirs returns where instances may be: dir, the folders in it, and those below it that a bridge or a mount
// names.
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
