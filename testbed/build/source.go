package build

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// SourceDir returns the folder testbed/ of the checkout, whose nested modules pin the components. It is the
// first that exists of $CRIPROXY_TESTBED_SOURCE, the folder from which this program was compiled, and the
// nearest testbed/ at or above the working directory.
func SourceDir() (string, error) {
	if dir := os.Getenv("CRIPROXY_TESTBED_SOURCE"); dir != "" {
		return dir, nil
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		if dir := filepath.Dir(filepath.Dir(file)); isSource(dir) {
			return dir, nil
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if isSource(dir) {
			return dir, nil
		}
		if below := filepath.Join(dir, "testbed"); isSource(below) {
			return below, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("testbed: no checkout to build from: this program was built with -trimpath and " +
				"no folder testbed/build/pins lies above the working directory " +
				"(run it inside a checkout, or set CRIPROXY_TESTBED_SOURCE to its testbed folder)")
		}
	}
}

func isSource(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, pinned(Containerd24), "go.mod"))
	return err == nil
}
