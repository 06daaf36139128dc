package model

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

var (
	seed      = flag.Uint64("seed", 0, "let TestSimulation run this `seed` alone")
	logs      = flag.String("log", "", "let TestSimulation write all that happens with -seed to a `file`")
	lasting   = flag.Duration("simulate", 40*time.Second, "let TestSimulation run fresh seeds for this `time`")
	goOn      = flag.Bool("go-on", false, "let TestSimulation go on after a seed that fails, and look for the shortest story of none")
	each      = flag.Duration("each", 10*time.Minute, "let TestSimulation simulate this `time` with each seed")
	report    = flag.String("report", "", "let TestSimulation write the situations that it met to a `file`, and fail if it met one never")
	outcomeTo = flag.String("model.outcome", "", "write the outcome to a `file`")
	stir      = flag.Int("model.stir", 0, "put a `number` of objects of each size before all others, which then have other addresses")
)

// An outcome is what a seed leads to.
type outcome struct {
	Seed     uint64
	Runtimes int
	Wrong    string `json:",omitempty"`
	Story    string `json:",omitempty"`
	Faults   []string
	Hours    float64
	Calls    int
	Met      []meeting
	Took     time.Duration // of the processor
}

// A meeting is a situation, and the number of calls in it.
type meeting struct {
	Fault, Operation, Condition string
	Calls                       int
}

// TestSimulatedSeed simulates -model.seed, and writes the outcome to a file. TestSimulation runs it in a process of its own.
func TestSimulatedSeed(t *testing.T) {
	if *outcomeTo == "" {
		t.Skip("left out: TestSimulation runs it")
	}
	var stirred [][]*int
	for range *stir {
		for size := 1; size <= 1<<10; size *= 2 {
			stirred = append(stirred, make([]*int, size))
		}
	}
	w := run(t, *first, *lasts, strings.Split(*without, ","))
	goruntime.KeepAlive(stirred)
	o := outcome{Seed: *first, Runtimes: *runtimes, Wrong: w.wrong, Faults: w.faults, Hours: w.lived.Hours(), Calls: w.calls}
	if w.wrong != "" {
		o.Story = w.story()
	}
	for s, n := range w.met {
		o.Met = append(o.Met, meeting{s.fault, s.operation, s.condition, n})
	}
	data, err := json.Marshal(o)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*outcomeTo, data, 0o600))
}

// A simulator runs seeds, each in a process of its own, because what one leaves behind in a process would change the next.
type simulator struct {
	t            *testing.T
	program, dir string
}

func (s simulator) run(seed uint64, runtimes int, lasts time.Duration, without []string, flags ...string) (outcome, error) {
	file := filepath.Join(s.dir, fmt.Sprint("outcome-", seed))
	cmd := bounded.Command(s.t, s.program, append([]string{"-test.run=^TestSimulatedSeed$", "-test.timeout=10m", "-model.outcome=" + file, fmt.Sprint("-model.seed=", seed), fmt.Sprint("-model.runtimes=", runtimes),
		"-model.time=" + lasts.String(), "-model.without=" + strings.Join(without, ",")}, flags...)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off") // collecting garbage would stop goroutines at other moments each time
	out, err := cmd.CombinedOutput()
	if err != nil {
		if len(out) > 8<<10 {
			out = out[:8<<10]
		}
		return outcome{Seed: seed, Runtimes: runtimes, Wrong: "the process ends: " + err.Error(), Story: string(out)}, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return outcome{}, fmt.Errorf("%w: %s", err, out)
	}
	var o outcome
	err = json.Unmarshal(data, &o)
	o.Took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return o, err
}

// shrink returns the outcome of a seed that fails with as few faults as possible, and which faults were left out.
func (s simulator) shrink(o outcome, lasts time.Duration) (outcome, []string) {
	var without []string
	deadline := time.Now().Add(2 * time.Minute)
	for size := max(len(o.Faults)/2, 1); ; size /= 2 {
		for at := 0; at < len(o.Faults) && time.Now().Before(deadline); {
			some := o.Faults[at:min(at+size, len(o.Faults))]
			less, err := s.run(o.Seed, o.Runtimes, lasts, append(slices.Clone(without), some...))
			if err == nil && less.Wrong != "" {
				without = append(without, some...)
				o = less
				continue
			}
			at += size
		}
		if size <= 1 {
			return o, without
		}
	}
}

// TestSimulation runs the whole daemon in a simulated world: the seeds that have once found a defect, then fresh ones.
func TestSimulation(t *testing.T) {
	untested.TakesLong(t)
	s := simulator{t, compile(t), t.TempDir()}
	if *seed != 0 {
		var flags []string
		if *logs != "" {
			flags = []string{"-model.calls", "-model.log=" + *logs}
		}
		o, err := s.run(*seed, *runtimes, *each, strings.Split(*without, ","), flags...)
		require.NoError(t, err)
		s.judge(t, o)
		t.Logf("seed %d: %.1f hours, %d calls", o.Seed, o.Hours, o.Calls)
		return
	}
	seeds := corpus(t)
	from := freshSeed(t)
	t.Logf("the seeds that once found a defect, then fresh ones from %d", from)
	deadline := time.Now().Add(*lasting)
	var mu sync.Mutex
	var group sync.WaitGroup
	next := func() (seed uint64, number int, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(seeds) > 0 {
			first := seeds[0]
			seeds = seeds[1:]
			return first.seed, first.runtimes, true
		}
		from++
		return from, 2 + int(from%uint64(len(names)-1)), time.Now().Before(deadline) && (*goOn || !t.Failed())
	}
	sum := outcome{}
	met := map[situation]int{}
	ran := 0
	for range goruntime.GOMAXPROCS(0) {
		group.Go(func() {
			for {
				seed, number, more := next()
				if !more {
					return
				}
				o, err := s.run(seed, number, *each, nil)
				if err != nil {
					t.Error(err)
					return
				}
				s.judge(t, o)
				mu.Lock()
				ran++
				sum.Hours, sum.Calls, sum.Took = sum.Hours+o.Hours, sum.Calls+o.Calls, sum.Took+o.Took
				for _, m := range o.Met {
					met[situation{m.Fault, m.Operation, m.Condition}] += m.Calls
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	never := neverMet(met)
	t.Logf("%d seeds, %.1f hours of a node, %d calls, %s of the processor; met %d situations, %d never", ran, sum.Hours, sum.Calls, sum.Took.Round(time.Second), len(met), len(never))
	if *report == "" || t.Failed() {
		return
	}
	for _, one := range never {
		t.Errorf("no call met this: %s", one)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, %.1f hours of a node, %d calls; an hour takes %.1f s of a processor. How many calls met a fault; for a fault of a runtime, while that was up, slow or gone:\n\n%s", ran, sum.Hours, sum.Calls, sum.Took.Seconds()/sum.Hours, table(met))
	require.NoError(t, markdown.Section(*report, "Situations", fmt.Sprintf("go test ./internal/testing/model -run Simulation -simulate %s -report docs/evidence/simulation.md", *lasting), b.String()))
}

// judge reports a seed that fails, with the shortest story of it.
func (s simulator) judge(t *testing.T, o outcome) {
	if o.Wrong == "" {
		return
	}
	var without []string
	if !*goOn {
		o, without = s.shrink(o, *each)
	}
	t.Errorf("seed %d: %s\nwith the faults %s\n%s\n\ngo test ./internal/testing/model -run Simulation -seed %d -model.runtimes %d -each %s -model.without %s",
		o.Seed, o.Wrong, strings.Join(o.Faults, " "), o.Story, o.Seed, o.Runtimes, *each, strings.Join(without, ","))
}

// freshSeed returns the first of the fresh seeds. It is another one for each commit, so that a commit that has passed
// does not fail later, and every change meets new worlds.
func freshSeed(t *testing.T) uint64 {
	commit, err := bounded.Command(t, "git", "rev-parse", "--short=8", "HEAD").Output()
	if err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(commit))[:8], 16, 64); err == nil {
			return n
		}
	}
	return rand.Uint64N(1 << 32) // not a clone
}

// found is a seed that once found a defect, with that number of runtimes.
type found struct {
	seed     uint64
	runtimes int
}

// corpus returns the seeds that once found a defect.
func corpus(t *testing.T) (all []found) {
	data, err := os.ReadFile("testdata/seeds.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		one := found{runtimes: *runtimes}
		if n, _ := fmt.Sscan(line, &one.seed, &one.runtimes); n > 0 {
			all = append(all, one)
		}
	}
	return all
}

// Objects have other addresses each time, and so has a map of pointers another order.
func TestASeedHappensInTheSameWayEachTime(t *testing.T) {
	untested.TakesLong(t)
	s := simulator{t, compile(t), t.TempDir()}
	for _, seed := range []uint64{5, 6} {
		var before []byte
		for i := range 3 {
			file := filepath.Join(s.dir, fmt.Sprint("log", i))
			o, err := s.run(seed, *runtimes, 5*time.Minute, nil, "-model.calls", "-model.log="+file, fmt.Sprint("-model.stir=", 7*i))
			require.NoError(t, err)
			s.judge(t, o)
			log, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NotEmpty(t, log)
			if before != nil && !bytes.Equal(before, log) {
				a, b := strings.Split(string(before), "\n"), strings.Split(string(log), "\n")
				for n := range min(len(a), len(b)) {
					require.Equal(t, a[n], b[n], "seed %d, line %d", seed, n+1)
				}
				t.Errorf("one log of seed %d is longer", seed)
			}
			before = log
		}
	}
}

// neverMet returns the pairs of fault and operation without a call.
func neverMet(met map[situation]int) []string {
	var never []string
	for _, fault := range faultNames() {
		for _, operation := range operationNames {
			n := 0
			for _, condition := range conditions {
				n += met[situation{fault, operation, condition}]
			}
			if n == 0 {
				never = append(never, fault+", "+operation)
			}
		}
	}
	return never
}

// faultNames returns the faults of runtimes, of operators and of clients' connections.
func faultNames() []string {
	all := map[string]bool{}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		all[forecast(rnd).name] = true
	}
	names := slices.Sorted(maps.Keys(all))
	for _, o := range slices.Concat(operations, aborted) {
		if !slices.Contains(names, o) {
			names = append(names, o)
		}
	}
	return append(names, cutClient)
}

// table returns the situations as a table: for each fault and operation, the number of calls while the runtime was up,
// slow or gone.
func table(met map[situation]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| fault | %s |\n|---|%s\n", strings.Join(operationNames, " | "), strings.Repeat("---|", len(operationNames)))
	for _, fault := range faultNames() {
		fmt.Fprintf(&b, "| %s |", fault)
		for _, operation := range operationNames {
			if n := met[situation{fault, operation, ""}]; n > 0 || slices.Contains(slices.Concat(operations, aborted), fault) || fault == cutClient {
				fmt.Fprintf(&b, " %d |", n)
				continue
			}
			fmt.Fprintf(&b, " %d, %d, %d |", met[situation{fault, operation, "up"}], met[situation{fault, operation, "slow"}], met[situation{fault, operation, "gone"}])
		}
		b.WriteString("\n")
	}
	return b.String()
}
