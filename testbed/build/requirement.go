package build

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Requirement returns what this machine lacks to build the components [ForContainers]. Nil means that it can build them,
// or has built them.
func Requirement() error {
	source, err := SourceDir()
	if err != nil {
		return err
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	for _, name := range ForContainers() {
		c, err := componentNamed(name)
		if err != nil {
			return err
		}
		version, err := c.version(source)
		if err != nil {
			return err
		}
		key, err := c.key(source, version)
		if err != nil {
			return err
		}
		if isDir(filepath.Join(cache, key)) {
			continue
		}
		if _, err := exec.LookPath("go"); err != nil {
			return fmt.Errorf("testbed: %s is not built yet, and there is no go command in PATH to build it", c.name)
		}
		if _, err := exec.LookPath("gcc"); c.cgo && err != nil && os.Getenv("CC") == "" {
			return fmt.Errorf("testbed: %s is not built yet, and there is no C compiler to build it (install gcc, or set CC)", c.name)
		}
	}
	return nil
}
