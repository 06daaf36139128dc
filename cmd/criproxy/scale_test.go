//go:build !race

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// thousand is how many nodes a large cluster has.
const thousand = 1000

// manyNodes serves a thousand nodes, and returns their addresses as -node takes them, and how often they were asked.
func manyNodes(tb testing.TB) (f *fleet, addresses string, asked *atomic.Int64) {
	f = newFleet(tb)
	asked = new(atomic.Int64)
	var all []string
	for i := range thousand {
		answer := nodeWith(fmt.Sprint(i), func(r *admin.Report) {
			r.Listeners, r.Errors = []admin.Listener{{Path: "/run/criproxy.sock"}}, []admin.CallError{}
			if i == 7 {
				r.Backends[1].State = "gone"
			}
		})
		all = append(all, f.serve(fmt.Sprint(i), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); answer.ServeHTTP(w, r) })))
	}
	return f, strings.Join(all, ","), asked
}

// measure runs a program, and returns its output and what it has used. The kernel's own figure of the memory begins with
// that of the process that starts a program, so measure reads the peak while the program runs.
func measure(tb testing.TB, cmd *exec.Cmd) (out string, cpu time.Duration, memory int64) {
	var said strings.Builder
	cmd.Stdout = &said
	require.NoError(tb, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	peak := regexp.MustCompile(`VmHWM:\s*(\d+) kB`)
	for {
		select {
		case err := <-ended:
			require.NoError(tb, err)
			require.Positive(tb, memory)
			return said.String(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), memory
		case <-time.After(5 * time.Millisecond):
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			if found := peak.FindSubmatch(text); found != nil && isProgram(cmd.Process.Pid, "criproxy") {
				kilobytes, _ := strconv.ParseInt(string(found[1]), 10, 64)
				memory = kilobytes << 10
			}
		}
	}
}

// isProgram reports whether a process runs the program of a name, and is not about to.
func isProgram(pid int, name string) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(line)) == name
}

// The race detector costs more than the bounds allow. They are on the processor and on memory: time on a busy machine says nothing.
func TestThousandNodesCostLittle(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	f, addresses, asked := manyNodes(t)
	cmd := bounded.Command(t, "criproxy", "status", "-node", addresses, "-timeout", "1m")
	cmd.Env = f.env
	out, cpu, memory := measure(t, cmd)
	assert.True(t, strings.HasPrefix(out, "999 of 1000 up\n"), out[:200])
	assert.EqualValues(t, thousand, asked.Load())
	assert.Less(t, cpu, 5*time.Second)
	assert.Less(t, memory, int64(200<<20))
	t.Logf("status: %s of a processor, %d MiB", cpu, memory>>20)

	cmd = exec.CommandContext(t.Context(), "criproxy", "ui", "-node", addresses, "-timeout", "1m")
	cmd.Env = f.env
	var said output
	cmd.Stdout = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	require.NoError(t, cmd.Start())
	said.waitFor(t, "token=")
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, Timeout: testkit.Patience}
	link := regexp.MustCompile(`http://\S+`).FindString(said.String())
	page := link[:strings.Index(link, "?")]
	get := func(url string, into any) int {
		response, err := browser.Get(url)
		require.NoError(t, err)
		defer response.Body.Close()
		if into != nil && response.StatusCode == http.StatusOK {
			require.NoError(t, json.NewDecoder(response.Body).Decode(into))
		}
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, get(link, nil))
	var shown struct {
		Version int
		Nodes   []struct{ Asked bool }
	}
	testkit.Eventually(t, "all have answered", func() bool {
		get(page+"nodes", &shown)
		n := 0
		for _, one := range shown.Nodes {
			if one.Asked {
				n++
			}
		}
		return n == thousand
	})
	began, before, rounds := time.Now(), processTime(t, cmd.Process.Pid), asked.Load()
	for asked.Load() < rounds+2*thousand {
		assert.Equal(t, http.StatusNoContent, get(fmt.Sprintf("%snodes?after=%d", page, shown.Version), nil), "nothing changes")
		time.Sleep(5 * time.Second) // as often as the page asks
	}
	share := float64(processTime(t, cmd.Process.Pid)-before) / float64(time.Since(began))
	assert.Less(t, share, 0.1)
	t.Logf("ui: %.1f%% of a processor", 100*share)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait())
}

// processTime returns the time that a process has had of a processor.
func processTime(t *testing.T, pid int) time.Duration {
	text := readFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system int64
	_, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	require.NoError(t, err)
	return time.Duration(user+system) * (time.Second / 100)
}
