// Package support notes on what criproxy has run: each test that has passed with real parts leaves a line in the testbed's
// cache, from which a test writes the table of docs/support.md.
package support

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/testbed/build"
)

// A Run is a test that has passed, and what ran in it.
type Run struct {
	Kubelet  string    `json:"kubelet,omitempty"` // empty: the test was the client
	Runtimes []string  `json:"runtimes"`          // sorted, with their versions
	Kernel   string    `json:"kernel"`
	CGroup   string    `json:"cgroup"` // "v1" or "v2"
	Arch     string    `json:"arch"`
	Test     string    `json:"test"` // package/TestName
	Time     time.Time `json:"time"`
}

var (
	mu   sync.Mutex
	runs = map[testing.TB]*Run{} // of tests that have not ended
)

// Uses notes that a test uses a kubelet or a runtime: the name of a component, and what to call it.
func Uses(t testing.TB, component, title string) {
	t.Helper()
	version, err := build.Version(component)
	if err != nil {
		return // the test itself fails of it
	}
	minor := strings.Join(strings.Split(strings.TrimPrefix(version, "v"), ".")[:2], ".")
	On(t, here(), func(r *Run) {
		if component == build.Kubelet {
			r.Kubelet = minor
		} else if one := title + " " + minor; !slices.Contains(r.Runtimes, one) {
			r.Runtimes = append(r.Runtimes, one)
			slices.Sort(r.Runtimes)
		}
	})
}

// On changes the run of a test, which is noted if the test passes. It begins as begin.
func On(t testing.TB, begin Run, change func(*Run)) {
	mu.Lock()
	defer mu.Unlock()
	r, ok := runs[t]
	if !ok {
		r = &begin
		runs[t] = r
		t.Cleanup(func() {
			mu.Lock()
			defer mu.Unlock()
			delete(runs, t)
			if !t.Failed() && !t.Skipped() {
				r.note(t.Name())
			}
		})
	}
	change(r)
}

// here is this machine.
func here() Run {
	r := Run{Arch: runtime.GOARCH, CGroup: "v1"}
	var fs unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		r.CGroup = "v2"
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		r.Kernel = Kernel(unix.ByteSliceToString(name.Release[:]))
	}
	return r
}

// Kernel shortens a kernel's release to its minor version.
func Kernel(release string) string {
	parts := strings.SplitN(release, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// File is where runs are noted.
func File() (string, error) {
	cache, err := build.CacheDir()
	return filepath.Join(cache, "support.jsonl"), err
}

func (r *Run) note(test string) {
	dir, err := os.Getwd() // go test runs a package's tests in its folder
	if err != nil {
		return
	}
	name, _, _ := strings.Cut(test, "/")
	r.Test, r.Time = filepath.Base(dir)+"/"+name, time.Now().UTC().Truncate(time.Second)
	path, err := File()
	if err != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return // a machine without a cache keeps no record; the tests are what counts
	}
	defer f.Close()
	_ = json.NewEncoder(f).Encode(r)
}
