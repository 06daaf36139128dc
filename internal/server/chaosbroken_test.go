package server

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// The assertions of the invariants fail when an invariant is broken.
func TestTheInvariantsOfChaosNoticeWhatBreaksThem(t *testing.T) {
	t.Run("a merged list lacks what a dead runtime held", func(t *testing.T) {
		n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Policy: "skip"}})
		n.isUp(1)
		h := newHistory(n, 1)
		n.run(1, "p1", 1)
		h.look()
		h.gone[1] = h.holds(1)
		n.runtimes[1].Kill()
		n.isDown(1)
		broken := &fatal{TB: t}
		n.TB = broken
		assert.True(t, broken.failed(h.look), "the list was short, and that was not noticed")
		n.TB = t
	})
	t.Run("a list lacks what a dead runtime held after a restart of the proxy", func(t *testing.T) {
		n := newNode(t, nil)
		n.isUp(1)
		h := newHistory(n, 1)
		n.run(1, "p1", 1)
		h.gone[1] = h.holds(1)
		n.runtimes[1].Kill()
		n.isDown(1)
		n.stop()
		require.NoError(t, os.Remove(stateFile(n.cfg, n.cfg.Backends[1]).Path))
		n.start()
		n.isUp(0)
		broken := &fatal{TB: t}
		n.TB = broken
		assert.True(t, broken.failed(h.look), "the list was short, and that was not noticed")
		n.TB = t
	})
	t.Run("a mutating call is made again", func(t *testing.T) {
		n := newNode(t, nil)
		n.isUp(1)
		c := &chaos{history: newHistory(n, 1), probe: &probe{containers: n.run(0, "p1", 1).containers}}
		c.count()
		c.mutate(0)
		require.NoError(t, c.sentTwice())
		c.sent--
		c.mutate(0)
		assert.Error(t, c.sentTwice())
	})
	t.Run("something is kept", func(t *testing.T) {
		before := levelNow()
		require.NoError(t, before.Leaked(levelNow(), more))
		stop := make(chan struct{})
		for range 20 {
			go func() { <-stop }()
		}
		assert.Error(t, before.Leaked(levelNow(), more), "goroutines")
		close(stop)
		testkit.Eventually(t, "they have ended", func() bool { return before.Leaked(levelNow(), more) == nil })
		before = levelNow() // the nodes above may have ended something since
		var files []*os.File
		for range 20 {
			f, err := os.Open(os.DevNull)
			require.NoError(t, err)
			files = append(files, f)
		}
		assert.Error(t, before.Leaked(levelNow(), more), "files")
		for _, f := range files {
			f.Close()
		}
		before = levelNow()
		memory := make([]byte, 2*more.Live)
		assert.Error(t, before.Leaked(levelNow(), more), "memory")
		goruntime.KeepAlive(memory)
	})
	t.Run("a fault at one runtime holds a lock that all calls take", func(t *testing.T) {
		n := newNode(t, nil)
		n.isUp(1)
		p := newProbe(t, n)
		defer func(was bool) { *chaosTimes = was }(*chaosTimes)
		*chaosTimes = true
		require.NoError(t, p.during([]int{0}, func() string { return quiet }))
		var err error
		for held := 20 * noise; err == nil && held < testkit.Patience; held *= 2 { // longer than the machine keeps calls waiting
			err = p.during([]int{0}, func() string {
				for range 3 {
					n.proxy.epochs.mu.Lock()
					time.Sleep(held)
					n.proxy.epochs.mu.Unlock()
					time.Sleep(time.Millisecond)
				}
				return "a lock"
			})
		}
		assert.ErrorContains(t, err, "99 of 100")
	})
	t.Run("a call to another runtime fails", func(t *testing.T) {
		n := newNode(t, nil)
		n.isUp(1)
		p := newProbe(t, n)
		assert.ErrorContains(t, p.during([]int{0}, func() string {
			n.runtimes[0].When(testkit.Failing(errExpected, "ContainerStatus"))
			return "an error"
		}), errExpected.Error())
	})
	t.Run("a call is not recorded as it was", func(t *testing.T) {
		n := newNode(t, nil)
		var w witness
		n.connect(grpc.WithUnaryInterceptor(w.interceptor()))
		for range 2 {
			_, err := n.Version(t.Context(), &runtimeapi.VersionRequest{})
			require.NoError(t, err)
		}
		compare := func() error {
			_, err := w.compare(n.proxy.record.Follow(), n.proxy.record.Reach().Oldest)
			return err
		}
		testkit.Eventually(t, "the ends are recorded", func() bool { return compare() == nil })
		w.calls[0].code = codes.Aborted
		w.calls[1].to = w.calls[1].from.Add(-time.Hour)
		w.calls = append(w.calls, &witnessed{method: "none", byCriproxy: true, from: time.Now(), to: time.Now()})
		err := compare()
		assert.ErrorContains(t, err, "call 0 is /runtime.v1.RuntimeService/Version with OK, and was /runtime.v1.RuntimeService/Version with Aborted")
		assert.ErrorContains(t, err, "call 1 was from")
		assert.ErrorContains(t, err, "call 2, none, is not there")
	})
	t.Run("a restart loses what was recorded", func(t *testing.T) {
		c := &chaos{history: newHistory(newNode(t, nil), 1)}
		require.NoError(t, c.kept(10))
		require.NoError(t, c.kept(4), "the recorder forgets, too")
		c.stop()
		c.start()
		assert.NoError(t, c.kept(2))
		c.stop()
		c.start()
		assert.ErrorContains(t, c.kept(0), "0 calls, and 2 before")
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
