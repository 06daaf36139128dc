package server

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/invariant"
	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

var (
	chaosSeed   = flag.Uint64("chaos.seed", 1, "what the faults of TestChaos are drawn by")
	chaosSteps  = flag.Int("chaos.steps", 10, "how many there are, in each of the modes of ids")
	chaosTimes  = flag.Bool("chaos.times", false, "fail if calls to other runtimes take longer during a fault, or end long after their deadline: a busy machine does that, too")
	chaosRecord = flag.String("chaos.record", "", "write what was recorded into a `FOLDER`, for criproxy why")
	chaosReport = flag.String("chaos.report", "", "write what happened to `FILE`")
)

// chaos is a history with more faults, and with invariants that must hold after each.
type chaos struct {
	*history
	probe    *probe
	witness  witness // of all calls of the client and of the probe
	before   invariant.Level
	fillDisk func()          // of the capture
	injected map[string]int  // :: fault → how often
	overrun  time.Duration   // the longest time that a call took beyond its deadline
	excuse   time.Duration   // how much of it is due to pauses of this process
	most     invariant.Level // after any step
	sent     int             // mutating calls, each of which carries its number
	compared struct {        // in the latest step
		with  *Proxy
		calls int
	}

	mu      sync.Mutex
	arrived map[string]int // :: number of a mutating call → how often the runtimes got it
}

// TestChaos injects faults and checks after each that no list is short, no mutating call is sent
// twice, the recorder has each call as its client saw it, no call goes on after its deadline, and no goroutine or memory is left over; with
// -chaos.times also how long calls take. The second form of ids begins with the fault after those of
// the first, so that a short run injects every fault once.
func TestChaos(t *testing.T) {
	var report strings.Builder
	fmt.Fprintf(&report, "| ids | fault | injected, and survived | p99 of calls to other runtimes meanwhile |\n|---|---|---|---|\n")
	played := 0
	inBothModesInTurn(t, func(t *testing.T, mode func(*config.Config)) {
		c := newChaos(t, mode)
		c.playChaos(played, *chaosSteps)
		played += *chaosSteps
		c.report(&report)
	})
	t.Logf("\n%s", report.String())
	if *chaosReport != "" && !t.Failed() {
		command := fmt.Sprintf("make chaos CHAOS_SEED=%d CHAOS_STEPS=%d", *chaosSeed, *chaosSteps)
		require.NoError(t, markdown.Section(*chaosReport, "Runtimes in memory", command, report.String()))
	}
}

func inBothModesInTurn(t *testing.T, test func(t *testing.T, mode func(*config.Config))) {
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		t.Run(ids, func(t *testing.T) { test(t, func(c *config.Config) { c.IDs = ids }) })
	}
}

// newChaos starts three runtimes, a proxy that captures on a disk of its own, and the probe.
func newChaos(t *testing.T, mode func(*config.Config)) *chaos {
	disk, fill := testkit.SmallDisk(t)
	var machines []machineConfig
	for _, name := range []string{"", "beta.io", "gamma.io"} {
		// The runtimes' record of calls would look like memory that is not freed.
		machines = append(machines, machineConfig{backend: config.Backend{Name: name}, wire: &testkit.Wire{}, Config: fakecri.Config{CallLog: -1}})
	}
	n := newNode(t, func(cfg *config.Config) {
		mode(cfg)
		impatient(cfg)
		cfg.FlightRecorder = 1 << 20 // soon full
		if *chaosRecord != "" {
			cfg.FlightRecorder = 16 << 20
		}
		cfg.Capture = config.Capture{Path: filepath.Join(disk, "c.jsonl"), MaxBytes: 64 << 10, MaxFiles: 2}
	}, machines...)
	for i := range n.runtimes {
		n.isUp(i)
	}
	c := &chaos{history: newHistory(n, *chaosSeed), fillDisk: fill, injected: map[string]int{}}
	c.count()
	see := grpc.WithUnaryInterceptor(c.witness.interceptor())
	_ = n.cc.Close() // nothing has used it
	n.connect(see)
	c.probe = newProbe(t, n, see)
	c.calm() // the first calls create things that stay: they count as before
	c.before = levelNow()
	return c
}

// count has the runtimes count the mutating calls that reach them.
func (c *chaos) count() {
	c.arrived = map[string]int{}
	var seen fakecri.Fault = func(ctx context.Context, method string, _ any) error {
		if !strings.HasSuffix(method, "/UpdateContainerResources") {
			return nil // a call may first ask the runtime for its version
		}
		md, _ := metadata.FromIncomingContext(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, number := range md.Get("chaos") {
			c.arrived[number]++
		}
		return nil
	}
	for _, m := range c.runtimes {
		m.Seen.Store(&seen)
	}
}

// peaceEvery is after how many steps all runtimes are up, to measure how long calls take without
// a fault.
const peaceEvery = 5

// playChaos injects faults, beginning with number first.
func (c *chaos) playChaos(first, steps int) {
	c.Helper()
	deck := c.faults() // each comes once before one comes twice
	order := rand.New(rand.NewPCG(*chaosSeed, 11))
	for step := range first + steps {
		if step%len(deck) == 0 {
			order.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		if step < first {
			continue
		}
		i := c.rand.IntN(len(c.runtimes))
		f := deck[step%len(deck)]
		if f.of == noRuntime {
			c.inject(-1, f)
		} else {
			if f.of == runningRuntime && c.gone[i] != nil {
				c.comeBack(i)
			}
			c.inject(i, f)
		}
		c.look()
		require.NoError(c, c.sentTwice(), "after:\n%s", c)
		c.compare()
		c.deadline(i)
		if *chaosTimes {
			require.NoError(c, invariant.InTime(c.overrun, c.excuse), "after:\n%s", c)
		}
		now := settled(c, c.before, c.String)
		c.most = c.most.Max(now)
		if step%peaceEvery == peaceEvery-1 {
			c.calm()
		}
	}
	c.calm()
	settled(c, c.before, c.String)
	if *chaosRecord != "" {
		file := filepath.Join(*chaosRecord, fmt.Sprintf("%s.blocks", strings.ReplaceAll(c.Name(), "/", "-")))
		recorded, _ := c.proxy.record.Snapshot()
		require.NoError(c, os.WriteFile(file, recorded, 0o600))
	}
}

// calm brings all runtimes back, and makes the probe measure calls without a fault.
func (c *chaos) calm() {
	c.Helper()
	for i := range c.runtimes {
		if c.gone[i] != nil {
			c.comeBack(i)
		}
	}
	require.NoError(c, c.probe.during(c.there(-1), func() string { return quiet }), "after:\n%s", c)
}

// there returns the runtimes that are up, except i.
func (c *chaos) there(i int) []int {
	var all []int
	for j := range c.runtimes {
		if j != i && c.gone[j] == nil {
			all = append(all, j)
		}
	}
	return all
}

// inject makes fault f at runtime i, or at none if i is negative, while the probe calls the others.
func (c *chaos) inject(i int, f fault) {
	c.Helper()
	if f.name != "" {
		c.note("%s (%d)", f.name, i)
	}
	err := c.probe.during(c.there(i), func() string {
		name := f.name
		if f.do(i); name == "" {
			name = faultOf(c.lines[len(c.lines)-1])
		}
		c.injected[name]++
		if name == restarted {
			return "" // no call is answered during a restart
		}
		return name
	})
	require.NoError(c, err, "after:\n%s", c)
}

const restarted = "restart the proxy" // the name of this step in the history

// randomStep is a fault that makes a step of the history.
func (c *chaos) randomStep(i int) {
	c.Helper()
	if c.gone[i] != nil {
		c.stepGone(i)
	} else {
		c.stepThere(i)
	}
}

var whom = regexp.MustCompile(`( of| on)? (p?\d+|\S*__\S+|[0-9a-f]{64})\b`)

// steps are longer names for the steps of the history.
var steps = map[string]string{
	"run": "a pod is made", "stop": "a pod is stopped", "remove": "a pod is removed",
	"stop in vain": "a pod is stopped, in vain, whose runtime is gone", "is back": "a runtime is back",
	"kill": "a runtime is killed", "freeze": "a runtime hangs",
}

// faultOf returns a line of the history without its runtime.
func faultOf(step string) string {
	of := strings.TrimSpace(whom.ReplaceAllString(" "+step+" ", ""))
	if name, ok := steps[of]; ok {
		return name
	}
	return of
}

// mutate makes a mutating call that carries a number. The call may fail.
func (c *chaos) mutate(i int) {
	c.sent++
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(c.Context(), "chaos", fmt.Sprint(c.sent)), testkit.Patience)
	defer cancel()
	_, _ = c.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.probe.containers[i]})
}

// sentTwice returns an error if a mutating call has reached the runtimes twice.
func (c *chaos) sentTwice() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return invariant.OnceEach(c.arrived)
}

// deadline makes a call with a short deadline that hangs, if the runtime is up, and notes how long
// it took beyond its deadline.
func (c *chaos) deadline(i int) {
	const little, pause = 50 * time.Millisecond, time.Millisecond
	ctx, cancel := context.WithTimeout(c.Context(), little)
	defer cancel()
	c.runtimes[i].When(testkit.Hanging("ReopenContainerLog"))
	defer c.runtimes[i].When(nil)
	began := time.Now()
	_, err := c.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: c.probe.containers[i]})
	require.Error(c, err)
	// The client gives up in any case. The proxy's own call must have ended.
	excuse := max(0, time.Since(began)-little)
	for c.proxy.sockets()[0].Limits.Calls.Load() > 0 {
		require.Less(c, time.Since(began), testkit.Patience, "a call outlives its deadline, after:\n%s", c)
		slept := time.Now()
		time.Sleep(pause)
		excuse += time.Since(slept) - pause
	}
	if overrun := time.Since(began) - little; overrun-excuse > c.overrun-c.excuse {
		c.overrun, c.excuse = overrun, excuse
	}
}

// comeBack brings runtime i back.
func (c *chaos) comeBack(i int) {
	if c.runtimes[i].Ice.Load() != nil {
		c.runtimes[i].Thaw()
	} else {
		c.runtimes[i].Start()
	}
	c.isUp(i)
	c.gone[i] = nil
}

// report returns the results as rows of a table.
func (c *chaos) report(to *strings.Builder) {
	row := func(what string, is any, others string) {
		fmt.Fprintf(to, "| %s | %s | %v | %s |\n", c.cfg.IDs, what, is, others)
	}
	others := func(phase string) string {
		calls := c.probe.of(phase)
		if len(calls) == 0 {
			return ""
		}
		return fmt.Sprintf("%s of %d", round(p99(calls)), len(calls))
	}
	for _, fault := range slices.Sorted(maps.Keys(c.injected)) {
		name := fault
		if n := c.probe.of(fault); fault != restarted && len(n) == 0 {
			name += " (no other was there)"
		}
		row(name, c.injected[fault], others(fault))
	}
	row("all of these", "", others(""))
	row("nothing is wrong", "", others(quiet))
	row("mutating calls, each sent once at most", c.sent, "")
	row("longest overrun of a deadline", fmt.Sprintf("%s, of which pauses of the test were late %s", round(c.overrun), round(c.excuse)), "")
	row("most that was open, after any step", fmt.Sprintf("%s; before: %s", c.most, c.before), "")
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
