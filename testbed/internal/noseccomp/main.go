// Command noseccomp stands in for runc on behalf of containerd: it takes the seccomp profile out of the
// specification of a container that is to be created, and then becomes the runc in PATH, which was built
// without libseccomp and would refuse it. kubelet asks for a profile for each and every sandbox.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "noseccomp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if i := slices.Index(args, "--bundle"); i > 0 && i+1 < len(args) && slices.Contains(args, "create") {
		if err := drop(filepath.Join(args[i+1], "config.json")); err != nil {
			return fmt.Errorf("editing the specification: %w", err)
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	args[0] = runc
	return syscall.Exec(runc, args, os.Environ())
}

// drop removes linux.seccomp from a specification, and leaves the rest as it is.
func drop(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec, linux map[string]json.RawMessage
	if err := json.Unmarshal(data, &spec); err != nil {
		return err
	}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil {
		return err
	}
	delete(linux, "seccomp")
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if data, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}
