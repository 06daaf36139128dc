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

// marker is the file that marks a folder as the testbed's, which may be removed with its content.
const marker = ".criproxy-testbed"

const tempDirPrefix = "ctb-"

// maxSocketPath is the kernel's limit for the path of a socket, in bytes.
const maxSocketPath = 107

// NewDir makes and claims the folder dir of an instance and returns its real path, as the kernel lists mounts. An empty
// dir means a new folder in the temporary folder. The instance will have a socket in it at the relative path longest;
// NewDir refuses a folder whose path leaves no room for that.
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

// TempDir makes a new folder with room for a socket at the relative path longest: in the temporary folder, or in /tmp
// if the path of the temporary folder is too long.
func TempDir(longest string) (string, error) {
	temp := os.TempDir()
	if len(temp)+len("/"+tempDirPrefix+"4294967295/"+longest) > maxSocketPath {
		temp = "/tmp"
	}
	return os.MkdirTemp(temp, tempDirPrefix)
}

// ClaimDir makes dir, or takes an existing empty folder, and marks it as the testbed's, so that Clean
// will remove it. It refuses a folder that is not empty.
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
		return fmt.Errorf("testbed: %s is not empty, and the testbed did not make it: name a new folder", dir)
	}
	text := "Made by criproxy's testbed, which removes this folder and everything in it: testbed down -dir .\n"
	if owned.Load() {
		text += ownerLine(os.Getpid())
	}
	if err := os.WriteFile(filepath.Join(dir, marker), []byte(text), 0o644); err != nil {
		return fmt.Errorf("testbed: marking %s: %w", dir, err)
	}
	return nil
}

// WriteWhole writes a file that another process may read at any time: under its name there is never a part of it. A file
// whose name begins with a dot is beside it meanwhile, which kubelet and criproxy ignore.
func WriteWhole(path string, data []byte) error {
	half := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".half")
	if err := os.WriteFile(half, data, 0o644); err != nil {
		return err
	}
	return os.Rename(half, path)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func claimed(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, marker))
	return err == nil
}

// removeClaimed removes a folder of the testbed. It succeeds if there is no such folder.
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

// Instances returns the folders of all instances on this machine, whatever program started them: of kubelets, which
// have a mount, of running proxies, and of containerds, which have a bridge.
func Instances() []string {
	dirs := append(kubeletDirs(), proxyDirs()...)
	bridges, _ := bridgesOf("") // every path is below ""
	for _, b := range bridges {
		dirs = append(dirs, b.Attrs().Alias)
	}
	return dirs
}

// kubeletDirs returns the folders of kubelets. The root folder of a kubelet is a mount.
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

// proxyDirs returns the folders of running proxies whose configuration file is in a folder of the testbed.
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

// instanceDirs returns the folders that may hold instances: dir, the folders in it, and those below it that a bridge or
// a mount names.
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
