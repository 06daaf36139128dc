package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// owned says that the folders which this process claims end with it.
var owned atomic.Bool

// ownerPrefix begins the line of a marker that names the owner: its pid, its start time, and the pid namespace in which
// both are valid.
const ownerPrefix = "owner: "

// Own makes this process the owner of each folder that it claims from now on: if it dies and leaves one, [CleanAbandoned]
// removes it. Folders without an owner, such as those of testbed up, stay until somebody asks.
func Own() { owned.Store(true) }

func ownerLine(pid int) string {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return fmt.Sprintf("%s%d %s %s\n", ownerPrefix, pid, StartTime(pid), namespace)
}

// ownerOf returns the process that a folder of the testbed ends with, and whether it is alive. The pid is 0 if the folder
// has no owner, or one of another pid namespace, of which we cannot tell.
func ownerOf(dir string) (pid int, alive bool) {
	data, _ := os.ReadFile(filepath.Join(dir, marker))
	for line := range bytes.Lines(data) {
		text, found := strings.CutPrefix(string(line), ownerPrefix)
		if !found {
			continue
		}
		first, _, _ := strings.Cut(text, " ")
		pid, err := strconv.Atoi(first)
		fields, ours := strings.Fields(text), strings.Fields(ownerLine(os.Getpid()))
		if err != nil || pid <= 0 || len(fields) != 3 || fields[2] != ours[len(ours)-1] {
			return 0, false
		}
		return pid, StartTime(pid) == fields[1]
	}
	return 0, false
}

// Owned returns the folders of the instances that end with this process.
func Owned() []string {
	return slices.DeleteFunc(claimedDirs(), func(dir string) bool {
		pid, alive := ownerOf(dir)
		return pid != os.Getpid() || !alive
	})
}

// CleanAbandoned cleans the folders whose owner is dead, as [Clean] does, and says of each what it removed and whose it
// was. It leaves alone what a living process owns and what has no owner.
func CleanAbandoned() (removed []string, err error) {
	var errs []error
	for _, dir := range claimedDirs() {
		pid, alive := ownerOf(dir)
		if pid == 0 || alive {
			continue
		}
		left := Leftovers(dir)
		if err := Clean(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, fmt.Sprintf("%s, which process %d left when it died: %s", dir, pid, strings.Join(left, ", ")))
	}
	return removed, errors.Join(errs...)
}

// claimedDirs returns the folders of instances, and those in the temporary folders that have nothing outside of them.
func claimedDirs() []string {
	dirs := Instances()
	for _, temp := range []string{os.TempDir(), "/tmp"} {
		found, _ := filepath.Glob(filepath.Join(temp, tempDirPrefix+"*"))
		dirs = append(dirs, found...)
	}
	for i, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dirs[i] = real
		}
	}
	slices.Sort(dirs)
	return slices.DeleteFunc(slices.Compact(dirs), func(dir string) bool { return !claimed(dir) })
}

// Criproxies returns the criproxies that this process started: its descendants, and those whose configuration file is in
// a folder that it owns, such as one that was handed over.
func Criproxies() []int {
	ours := Owned()
	var all []int
	for _, pid := range pids() {
		if program(pid) != "criproxy" {
			continue
		}
		args := command(pid)
		i := slices.Index(args, "-config")
		inOurs := i >= 0 && i+1 < len(args) && slices.Contains(ours, filepath.Dir(args[i+1]))
		if inOurs || descends(pid, os.Getpid()) {
			all = append(all, pid)
		}
	}
	return all
}

// descends reports whether a process is a child of another one, or a child's child.
func descends(pid, from int) bool {
	for range 64 { // a chain changes while we follow it
		s, err := readStat(pid)
		if err != nil || s.parent <= 1 {
			return false
		}
		if s.parent == from {
			return true
		}
		pid = s.parent
	}
	return false
}

// OutputOf returns the file to which a process writes its standard error; empty if that is no file.
func OutputOf(pid int) string {
	file, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid))
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return file
}
