// Command noseccomp replaces runc for containerd: it removes the seccomp profile from the specification of a
// new container, and then executes the runc in PATH, which was built without libseccomp and would refuse the
// profile. kubelet requests a profile for every sandbox.
//
// It also removes settings that need CAP_SYS_RESOURCE: an OOM score below our own and, if we lack the capability, the
// capability itself and CRI-O's limits of huge pages. containerd has options to avoid these; Docker and CRI-O do not.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// drop removes linux.seccomp from a specification, and process.oomScoreAdj if it is too low, and keeps the rest.
func drop(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec, linux, process map[string]json.RawMessage
	if err := json.Unmarshal(data, &spec); err != nil {
		return err
	}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil {
		return err
	}
	delete(linux, "seccomp")
	bounded := !mayRaise()
	if resources := (map[string]json.RawMessage{}); bounded && json.Unmarshal(linux["resources"], &resources) == nil && resources["hugepageLimits"] != nil {
		delete(resources, "hugepageLimits")
		if linux["resources"], err = json.Marshal(resources); err != nil {
			return err
		}
	}
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if err := json.Unmarshal(spec["process"], &process); err != nil {
		return err
	}
	if tooLow(process["oomScoreAdj"]) {
		delete(process, "oomScoreAdj")
	}
	if sets := (map[string][]string{}); bounded && json.Unmarshal(process["capabilities"], &sets) == nil && len(sets) > 0 {
		for name, set := range sets {
			sets[name] = slices.DeleteFunc(set, func(c string) bool { return c == "CAP_SYS_RESOURCE" })
		}
		if process["capabilities"], err = json.Marshal(sets); err != nil {
			return err
		}
	}
	if spec["process"], err = json.Marshal(process); err != nil {
		return err
	}
	if data, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// mayRaise reports whether we have CAP_SYS_RESOURCE.
func mayRaise() bool {
	const sysResource = 24
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	caps, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && caps&(1<<sysResource) != 0
}

// tooLow reports whether an OOM score is below our own.
func tooLow(score json.RawMessage) bool {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || score == nil {
		return false
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		return false
	}
	want, err := strconv.Atoi(string(score))
	return err == nil && want < have
}
