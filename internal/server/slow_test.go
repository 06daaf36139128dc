package server

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A runtime is slow with lists and statuses. Status is the call by which kubelet judges a
// node.
var slowMethods = []string{"ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers", "PodSandboxStatus", "ContainerStatus", "Status"}

// brief makes lists wait for a runtime a quarter as long as by default.
func brief(c *config.Config) { c.ListBudget = 500 * time.Millisecond }

// hasty is brief, and makes a runtime that was late be up again after 3 s. On a busy machine even a runtime in memory is late again
// within 10 s, and may be gone for a while.
func hasty(c *config.Config) { brief(c); c.GoneAfter = 3 * time.Second }

// slowing makes lists and statuses take longer than a hasty node waits.
func slowing() fakecri.Fault { return testkit.Slowing(800*time.Millisecond, slowMethods...) }

// change reloads the configuration with a change.
func (n *node) change(f func(*config.Config)) {
	n.Helper()
	cfg := *n.cfg
	f(&cfg)
	cfg.StateDir = cmp.Or(cfg.StateDir, "none") // not the default, which other tests have at the same time
	require.NoError(n, Check(&cfg))
	makeStateDir(&cfg)
	require.NoError(n, reload(n.proxy, &cfg))
	n.cfg = &cfg
}

func (n *node) state(i int) backend.State { return n.proxy.backends()[i].backend.State() }

// criproxy status took 3 s: it waited for the version, which it knew.
func TestAReportDoesNotWaitForASlowRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t, brief)
	n.run(1, "db", 1)
	n.known()
	known := n.proxy.Report(n.ctx()).Backends[1].Runtime
	require.NotEmpty(t, known)
	n.runtimes[1].When(testkit.Hanging())
	testkit.Eventually(t, "it is seen to be slow", func() bool { return n.proxy.Health().Backends[1].State == capture.Slow })
	ctx, cancel := context.WithTimeout(n.ctx(), testkit.Patience/2)
	defer cancel()
	var r admin.Backend
	testkit.Eventually(t, "the cache answers for the report", func() bool { r = n.proxy.backends()[1].report(ctx); return r.Pods != nil })
	assert.NoError(t, ctx.Err(), "it waited for as long as it was let")
	assert.Equal(t, "slow "+known, r.State+" "+r.Runtime)
	assert.Equal(t, 1, *r.Pods)
	n.runtimes[1].When(nil)
}

func TestASlowPrimaryIsAskedForItsStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t, brief) // nothing here waits for the end of a silence
	n.run(0, "web", 1)
	n.known()
	n.runtimes[0].When(slowing())
	n.isSlow(0)
	for range 5 {
		answer, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
		require.NoError(t, err, "kubelet would have waited")
		assert.NotEmpty(t, answer.GetStatus().GetConditions())
	}
}

// After a reload that added a runtime while the lists of the primary took longer than the budget,
// the list of pods used to be empty, without an error.
func TestARuntimeAddedBesideASlowPrimaryEmptiesNoList(t *testing.T) {
	t.Parallel()
	n := newNode(t, brief, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}})
	both := n.cfg.Backends
	web := n.run(0, "web", 1)
	n.change(func(c *config.Config) { c.Backends = both[:1] })
	n.runtimes[0].When(slowing())
	n.change(func(c *config.Config) { c.Backends = both })
	for range 10 {
		n.lists(web.sandbox)
	}
}

// With a folder that cannot be written, a new budget or address during an outage used to remove the
// pods from the lists.
func TestAReloadDuringAnOutageForgetsNothing(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, func(c *config.Config) { mode(c); hasty(c) })
		web, db := n.run(0, "web", 1), n.run(1, "db", 1)
		n.known()
		n.loseStateDir()
		n.runtimes[1].Kill()
		n.isDown(1)
		counted := n.proxy.Report(n.ctx()).Backends[1].Remembered
		for what, change := range map[string]func(*config.Config){
			"the budget": func(c *config.Config) { c.ListBudget += time.Millisecond },
			"the address": func(c *config.Config) {
				c.Backends = append([]config.Backend{}, c.Backends...)
				c.Backends[1].Address += "2"
			},
			"the largest message": func(c *config.Config) { c.MaxMessageBytes++ },
		} {
			n.change(change)
			for range 3 {
				pods, err := listPods(nil).unary(n)
				require.NoError(t, err, what)
				assert.ElementsMatch(t, []string{web.sandbox, db.sandbox}, idsOf(pods), what)
			}
			_, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: db.sandbox})
			assert.NoError(t, err, what)
			now := n.proxy.Report(n.ctx()).Backends[1].Remembered
			assert.GreaterOrEqual(t, now, counted+4, "%s: answers from the cache go on being counted", what)
			counted = now
		}
	})
}

func TestARuntimeThatIsRemovedIsForgotten(t *testing.T) {
	t.Parallel()
	n := newNode(t, hasty)
	web := n.run(0, "web", 1)
	n.run(1, "db", 1)
	n.known()
	both := n.cfg.Backends
	file := stateFile(n.cfg, both[1]).Path
	testkit.Eventually(t, "it is remembered", func() bool { _, err := os.Stat(file); return err == nil })
	n.runtimes[1].Kill()
	n.isDown(1)
	n.change(func(c *config.Config) { c.Backends = both[:1] })
	assert.NoFileExists(t, file)
	n.change(func(c *config.Config) { c.Backends = both })
	n.isDown(1)
	n.lists(web.sandbox) // there are no events of what was there before
}

func TestTheStartOfANodeHasAWordOfItsOwn(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	first := startOfNode(run)
	assert.NotEmpty(t, first)
	assert.Equal(t, first, startOfNode(run))
	require.NoError(t, os.Remove(filepath.Join(run, "criproxy.boot"))) // as a start of the node does
	assert.NotEqual(t, first, startOfNode(run))
	assert.Empty(t, startOfNode("/proc/nowhere"))
}
