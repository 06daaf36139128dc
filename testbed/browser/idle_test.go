package browser

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// used returns the CPU time of a process. The kernel counts it in hundredths of a second.
func used(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] { // in user mode, and in the kernel
		n, err := strconv.ParseInt(f, 10, 64)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// resident returns the memory of a process, in MB.
func resident(t *testing.T, pid int) float64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(stat))[1])
	require.NoError(t, err)
	return float64(pages*os.Getpagesize()) / 1e6
}

// Most of the time no browser asks. Then a hundred thousand calls, and more that come as from a kubelet, must cost little:
// the test counts CPU time, which other processes of the machine do not add to.
func TestAPageThatNobodySeesCostsLittle(t *testing.T) {
	const many, atOnce = 100_000, 8
	m := start(t)
	id := m.pod("vault", "kata.io")
	call := func() error {
		_, err := m.client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		return err
	}
	began := time.Now()
	var senders sync.WaitGroup
	failures := make(chan error, atOnce)
	for range atOnce {
		senders.Go(func() {
			for range many / atOnce {
				if err := call(); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	senders.Wait()
	t.Log(time.Since(began), "for the calls")
	require.Empty(t, failures)
	p := open(t, m.link)
	const shown = `Number(` + count + `.split(" of ").pop().replaceAll(",", ""))`
	// ui, the page and the recorder may each have dropped the oldest: the recorder archives with at most a two-hundredth of a
	// processor, so a slow machine keeps fewer of such a flood. What the test measures needs a full page, of whatever size.
	p.see(shown + ` > 50_000`)

	const seconds = 10
	measure := func(what string) {
		t.Helper()
		before, from := used(t, m.ui.Process.Pid), time.Now()
		for range seconds * 20 { // as from a kubelet of a hundred pods
			require.NoError(t, call())
			time.Sleep(50 * time.Millisecond)
		}
		share := float64(used(t, m.ui.Process.Pid)-before) / float64(time.Since(from))
		t.Logf("%s: %.1f%% of a core, %.0f MB", what, 100*share, resident(t, m.ui.Process.Pid))
		assert.Less(t, share, 0.05, what)
	}
	hide := func(hidden string) {
		value[bool](p, `(Object.defineProperty(document, "hidden", { configurable: true, get: () => `+hidden+` }), document.dispatchEvent(new Event("visibilitychange")), true)`)
	}
	hide("true")
	time.Sleep(time.Second) // what it was about to draw
	const drawn = `Number(document.body.dataset.drawn)`
	before := value[int](p, drawn)
	measure("a page in a hidden tab")
	assert.Equal(t, before, value[int](p, drawn), "a hidden page draws nothing")
	hide("false")
	p.see(fmt.Sprintf(drawn+` > %d`, before)) // it catches up
	t.Logf("the page has %.0f MB of heap", value[float64](p, `performance.memory.usedJSHeapSize`)/1e6)
}
