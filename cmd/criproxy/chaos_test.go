package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	chaosSeed   = flag.Uint64("chaos.seed", 1, "what the faults of TestChaos are drawn by")
	chaosSteps  = flag.Int("chaos.steps", 30, "how many there are, in each of the modes of ids")
	chaosReport = flag.String("chaos.report", "", "write what happened to `FILE`")
)

// chaos is a history with more faults, and with what must hold after each.
type chaos struct {
	*history
	sent     int            // mutating calls, each with its number on it
	injected map[string]int // :: fault → how often
	overrun  time.Duration  // the most that a call took longer than its deadline
	excuse   time.Duration  // the most that a timer of this process did
}

// TestChaos injects faults and looks after each whether what must hold holds: no list
// is short, no mutating call is sent twice, no call outlasts its deadline; and in the end
// that nothing is left over.
func TestChaos(t *testing.T) {
	var report strings.Builder
	fmt.Fprintf(&report, "| ids | fault | injected, and survived |\n|---|---|---|\n")
	inBothModesInTurn(t, func(t *testing.T, mode func(*Config)) {
		n := newNode(t, mode, machineConfig{}, machineConfig{backend: BackendConfig{Name: "beta.io"}}, machineConfig{backend: BackendConfig{Name: "gamma.io"}})
		for i := range n.runtimes {
			n.isUp(i)
		}
		before := leftOver()
		c := &chaos{history: newHistory(n, *chaosSeed), injected: map[string]int{}}
		c.playChaos(*chaosSteps)
		for i := range n.runtimes {
			if c.gone[i] != nil {
				c.comeBack(i)
			}
		}
		eventually(t, "goroutines and files are as before", func() bool { return leaked(before, leftOver()) == nil })
		for _, fault := range slices.Sorted(maps.Keys(c.injected)) {
			fmt.Fprintf(&report, "| %s | %s | %d |\n", n.cfg.IDs, fault, c.injected[fault])
		}
		fmt.Fprintf(&report, "| %s | mutating calls, each sent once at most | %d |\n", n.cfg.IDs, c.sent)
		fmt.Fprintf(&report, "| %s | longest overrun of a deadline (a timer of the process: %s) | %s |\n", n.cfg.IDs, c.excuse.Round(100*time.Microsecond), c.overrun.Round(100*time.Microsecond))
	})
	t.Logf("\n%s", report.String())
	if *chaosReport != "" && !t.Failed() {
		text := fmt.Sprintf("# Faults injected and survived\n\n`make chaos CHAOS_SEED=%d CHAOS_STEPS=%d` made this.\n\n%s", *chaosSeed, *chaosSteps, report.String())
		require.NoError(t, os.WriteFile(*chaosReport, []byte(text), 0o644))
	}
}

func inBothModesInTurn(t *testing.T, test func(t *testing.T, mode func(*Config))) {
	for _, ids := range []string{idsPrefix, idsNative} {
		t.Run(ids, func(t *testing.T) { test(t, func(c *Config) { c.IDs = ids }) })
	}
}

func (c *chaos) playChaos(steps int) {
	c.Helper()
	for range steps {
		i := c.rand.IntN(len(c.runtimes))
		switch c.rand.IntN(4) {
		case 0:
			c.clientFault()
		case 1:
			c.mutate(i)
		default:
			told := len(c.told)
			if c.gone[i] == nil {
				c.stepThere(i)
			} else {
				c.stepGone(i)
			}
			for _, what := range c.told[told:] {
				c.injected[faultOf(what)]++
			}
		}
		c.look()
		require.NoError(c, c.sentTwice(), "after:\n%s", c)
		c.deadline(i)
		require.NoError(c, late(c.overrun, c.excuse), "after:\n%s", c)
	}
}

// faultOf is what was told without whom it was about.
func faultOf(told string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(told), func(w string) bool {
		return strings.Trim(w, "0123456789") == "" || strings.ContainsAny(w, "_") || len(w) > 30 || strings.HasPrefix(w, "p") && strings.Trim(w[1:], "0123456789") == ""
	}), " ")
}

// clientFault is a client that does not behave.
func (c *chaos) clientFault() {
	c.Helper()
	what := []string{"vanish in the middle of calls", "half-closed connection", "reset streams", "garbage for HTTP/2"}[c.rand.IntN(4)]
	c.tell("%s", what)
	c.injected[what]++
	switch what {
	case "vanish in the middle of calls", "reset streams":
		for range 20 {
			ctx, cancel := context.WithCancel(c.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = c.ListContainers(ctx, &runtimeapi.ListContainersRequest{}) // which is cut off
			}()
			if c.rand.IntN(2) == 0 {
				runtime.Gosched()
			}
			cancel()
			<-done
		}
	default:
		conn, err := net.Dial("unix", c.cfg.Listen)
		require.NoError(c, err)
		defer conn.Close() // that is the fault
		text := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		if what == "garbage for HTTP/2" {
			text += "\xff\xff\xff\x09\xff\x7f\xff\xff\xff and so on"
		}
		_, _ = conn.Write([]byte(text)) // it may be closed already
		_ = conn.(*net.UnixConn).CloseWrite()
	}
}

// mutate makes a mutating call with a number on it, whatever becomes of it.
func (c *chaos) mutate(i int) {
	c.sent++
	c.tell("update number %d at %d", c.sent, i)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(c.Context(), "chaos", fmt.Sprint(c.sent)), patience)
	defer cancel()
	_, _ = c.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.front(i, "none")})
}

// sentTwice returns an error if a mutating call has reached the runtimes twice.
func (c *chaos) sentTwice() error {
	seen := map[string]int{}
	for _, m := range c.runtimes {
		for _, call := range m.Calls("UpdateContainerResources") {
			for _, number := range call.Metadata["chaos"] {
				if seen[number]++; seen[number] > 1 {
					return fmt.Errorf("the mutating call number %s was sent twice", number)
				}
			}
		}
	}
	return nil
}

// deadline makes a call that may hang with little time, and notes how much longer it took.
func (c *chaos) deadline(i int) {
	const little = 50 * time.Millisecond
	own := make(chan time.Duration, 1)
	began := time.Now()
	time.AfterFunc(little, func() { own <- time.Since(began) - little })
	ctx, cancel := context.WithTimeout(c.Context(), little)
	defer cancel()
	c.runtimes[i].when(hanging("ReopenContainerLog"))
	defer c.runtimes[i].when(nil)
	_, err := c.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: c.front(i, "none")})
	require.Error(c, err)
	// The client gives up by itself. It is the proxy's own call that has to have ended.
	for c.proxy.sockets[0].calls.Load() > 0 && time.Since(began) < patience {
		time.Sleep(time.Millisecond)
	}
	c.overrun = max(c.overrun, time.Since(began)-little)
	c.excuse = max(c.excuse, <-own)
}

// late returns an error if a call outlasted its deadline by more than 100ms, and by more
// than this machine is late with its own timers.
func late(overrun, excuse time.Duration) error {
	if overrun > 100*time.Millisecond+2*excuse {
		return fmt.Errorf("a call ended %s after its deadline, a timer %s", overrun, excuse)
	}
	return nil
}

// comeBack makes runtime i be there again.
func (c *chaos) comeBack(i int) {
	if c.runtimes[i].ice.Load() != nil {
		c.runtimes[i].thaw()
	} else {
		c.runtimes[i].start()
	}
	c.isUp(i)
	c.gone[i] = nil
}

// left is what a process has open.
type left struct{ goroutines, files int }

func leftOver() left {
	files, _ := os.ReadDir("/proc/self/fd")
	return left{runtime.NumGoroutine(), len(files)}
}

// leaked returns an error if there is clearly more after than before: connections that
// were idle before may be made of more goroutines for a moment.
func leaked(before, after left) error {
	if after.goroutines > before.goroutines+10 || after.files > before.files+5 {
		return fmt.Errorf("before %+v, after %+v", before, after)
	}
	return nil
}

// What asserts the invariants is shown to fail when they are broken, one by one.
func TestTheInvariantsOfChaosAreNoticedWhenTheyAreBroken(t *testing.T) {
	t.Run("a merged list lacks what a dead runtime held", func(t *testing.T) {
		n := newNode(t, nil, machineConfig{}, machineConfig{backend: BackendConfig{Name: "beta.io", Policy: "skip"}})
		n.isUp(1)
		h := newHistory(n, 1)
		n.run(1, "p1", 1)
		h.look()
		h.gone[1] = h.holds(1)
		n.runtimes[1].kill()
		n.isDown(1)
		broken := &fatal{TB: t}
		n.TB = broken
		assert.True(t, broken.failed(h.look), "the list was short, and nobody said so")
		n.TB = t
	})
	t.Run("a mutating call is made again", func(t *testing.T) {
		n := newNode(t, nil)
		n.isUp(1)
		c := &chaos{history: newHistory(n, 1)}
		c.mutate(0)
		require.NoError(t, c.sentTwice())
		c.sent--
		c.mutate(0)
		assert.Error(t, c.sentTwice())
	})
	t.Run("a goroutine and a file are forgotten", func(t *testing.T) {
		before := leftOver()
		stop := make(chan struct{})
		for range 20 {
			go func() { <-stop }()
		}
		assert.Error(t, leaked(before, leftOver()))
		close(stop)
		var files []*os.File
		for range 20 {
			f, err := os.Open(os.DevNull)
			require.NoError(t, err)
			files = append(files, f)
		}
		assert.Error(t, leaked(before, leftOver()))
		for _, f := range files {
			f.Close()
		}
	})
	t.Run("a call outlasts its deadline", func(t *testing.T) {
		assert.NoError(t, late(90*time.Millisecond, 0))
		assert.Error(t, late(110*time.Millisecond, 0))
	})
}

// fatal is a test whose failure is expected.
type fatal struct {
	testing.TB
	err error
}

var errExpected = errors.New("expected")

func (f *fatal) Errorf(format string, args ...any) { f.err = fmt.Errorf(format, args...) }
func (f *fatal) FailNow()                          { panic(errExpected) }

// failed reports whether do fails the test.
func (f *fatal) failed(do func()) (failed bool) {
	defer func() {
		if v := recover(); v != nil && v != errExpected { //nolint:errorlint // it is this very one
			panic(v)
		}
		failed = f.err != nil
	}()
	do()
	return
}
