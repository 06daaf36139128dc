package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// events returns the changes of the second runtime that criproxy events shows.
func (p *process) events(args ...string) []capture.Change {
	p.Helper()
	return p.happened("beta.io", args...)
}

// happened returns the changes of a runtime, or of criproxy itself, that criproxy events shows.
func (p *process) happened(backend string, args ...string) []capture.Change {
	p.Helper()
	out := p.says(append([]string{"events", "-o", "json"}, args...)...)
	return changesIn(p, backend, out, unwrapped)
}

// changesIn returns the changes of a runtime, or of criproxy itself, in lines of JSON.
func changesIn(t testing.TB, backend, out string, read func([]byte) (capture.Change, error)) []capture.Change {
	t.Helper()
	var all []capture.Change
	for line := range strings.Lines(out) {
		c, err := read([]byte(line))
		require.NoError(t, err, line)
		if c.What != "" && c.Backend == backend {
			all = append(all, c)
		}
	}
	return all
}

// whats returns what happened in each of the changes.
func whats(all []capture.Change) []string {
	var told []string
	for _, c := range all {
		told = append(told, c.What)
	}
	return told
}

// stories returns the changes as lines to compare: what happened, and since when.
func stories(all []capture.Change) []string {
	var told []string
	for _, c := range all {
		told = append(told, c.What+" since "+c.Time.UTC().Format(time.RFC3339Nano))
	}
	return told
}

func unwrapped(line []byte) (c capture.Change, err error) {
	err = json.Unmarshal(line, &c)
	return c, err
}

func wrapped(line []byte) (capture.Change, error) {
	var l struct{ Change capture.Change }
	err := json.Unmarshal(line, &l)
	return l.Change, err
}

// beginnings returns what the header of a recording in each format says of the second runtime.
func (p *process) beginnings() map[string]capture.HeaderBackend {
	p.Helper()
	all := map[string]capture.HeaderBackend{}
	for _, f := range capture.Formats {
		dump := filepath.Join(p.TempDir(), "begins."+string(f))
		p.says("dump", dump)
		lines := dump + ".jsonl"
		says(p, "convert", dump, lines)
		data := readFile(p, lines)
		first, _, _ := strings.Cut(string(data), "\n")
		var h capture.FileHeader
		require.NoError(p, json.Unmarshal([]byte(first), &h))
		require.Len(p, h.Backends, 2)
		all[string(f)] = h.Backends[1]
	}
	return all
}

// During one outage every place must have the same events.
func TestEveryPlaceTellsTheSameStory(t *testing.T) {
	untested.TakesLong(t)
	for name, handsOver := range map[string]bool{"one process": false, "over handovers": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProcess(t)
			p.write("listBudget: 2s\ngoneAfter: 6s\n")
			p.launch()
			sandbox, container := p.runPod("web", "beta.io")
			runtime := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			rt := p.runtimes[1]
			is := func(want string) {
				t.Helper()
				testkit.Eventually(t, "the second runtime is "+want, func() bool { all := p.events(); return len(all) > 0 && all[len(all)-1].What == want })
				if handsOver {
					p.handOver()
					testkit.Eventually(t, "it is still "+want, func() bool { _, r := p.status(); return r.Backends[1].State == want })
				}
			}
			is(capture.Up)
			rt.Freeze() // it hangs
			is(capture.Gone)
			_, err := runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: container})
			all := p.events()
			assert.ErrorContains(t, err, "backend beta.io is gone since "+all[len(all)-1].Time.Local().Format(time.TimeOnly), "what kubelet is told")
			assert.Equal(t, []string{sandbox}, func() []string { _, r := p.status(); return r.Backends[1].PodIDs }())
			for format, begins := range p.beginnings() {
				if assert.NotNil(t, begins.Pods, format) {
					assert.Equal(t, 1, *begins.Pods, format)
					assert.Equal(t, 1, *begins.Containers, format)
				}
				assert.Equal(t, "gone since "+all[len(all)-1].Time.UTC().String(), begins.State+" since "+begins.Since.UTC().String(), format)
				assert.Equal(t, all[len(all)-1].Why, begins.Why, format)
			}
			rt.Thaw() // it answers
			is(capture.Up)
			rt.Kill()
			is(capture.Gone)
			rt.When(testkit.Slowing(3*time.Second, "ListContainers", "ListPodSandbox"))
			rt.Start() // it comes back slow
			is(capture.Slow)
			rt.When(nil)
			is(capture.Up)

			want := p.events()
			var what []string
			for _, c := range want {
				what = append(what, c.What)
				assert.NotZero(t, c.PID)
				if c.Was != "" {
					assert.Equal(t, 1, *c.Pods, "%+v", c)
					assert.Equal(t, 1, *c.Containers, "%+v", c)
				}
			}
			assert.Equal(t, []string{"up", "slow", "gone", "up", "gone", "slow", "up"}, what)
			for i, c := range want[1:] {
				assert.Equal(t, want[i].What, c.Was)
				assert.True(t, c.Since.Equal(want[i].Time), "%+v follows %+v", c, want[i])
			}

			text, r := p.status()
			b := r.Backends[1]
			assert.Equal(t, "up", b.State)
			last := want[len(want)-1]
			assert.Equal(t, last.Time.UTC(), b.Since.UTC())
			assert.Empty(t, b.PodIDs)
			var outages []string
			for _, o := range slices.Backward(b.Outages) {
				outages = append(outages, o.State+" since "+o.From.UTC().Format(time.RFC3339Nano))
				assert.Equal(t, 1, *o.Pods)
				assert.Equal(t, 1, *o.Containers)
				assert.False(t, o.To.IsZero())
				assert.Contains(t, text, fmt.Sprintf("beta.io was %s from %s", o.State, o.From.Local().Format("15:04:05")))
				assert.Regexp(t, "beta.io was "+o.State+" from .*, 1 pod, 1 container: ", text)
			}
			assert.Equal(t, slices.DeleteFunc(stories(want), func(s string) bool { return strings.HasPrefix(s, "up") }), outages)
			metrics := p.scrape()
			assert.InDelta(t, float64(last.Time.UnixNano())/1e9, metrics[`criproxy_backend_since_timestamp_seconds{backend="beta.io"}`], 1e-6)
			assert.Equal(t, 1.0, metrics[`criproxy_backend_up{backend="beta.io"}`])

			dump := filepath.Join(p.dir, "calls.jsonl")
			p.says("dump", dump)
			data := readFile(t, dump)
			assert.Equal(t, stories(want), stories(changesIn(t, "beta.io", string(data), wrapped)), "the recording")
			for _, format := range []string{"pcapng", "binlog"} {
				other, back := filepath.Join(p.dir, "calls."+format), filepath.Join(p.dir, "back-"+format+".jsonl")
				says(t, "convert", dump, other)
				says(t, "convert", other, back)
				data := readFile(t, back)
				assert.Equal(t, stories(want), stories(changesIn(t, "beta.io", string(data), wrapped)), format)
			}
			var lines []string
			for _, m := range regexp.MustCompile(`(?m)^(\S+ \S+)  -- beta.io is (\w+)`).FindAllStringSubmatch(says(t, "view", dump), -1) {
				lines = append(lines, m[2]+" "+m[1])
			}
			var wantLines []string
			for _, c := range want {
				wantLines = append(wantLines, c.What+" "+c.Time.Local().Format("2006-01-02 15:04:05.000"))
			}
			assert.Equal(t, wantLines, lines, "view")
			log := readFile(t, p.log)
			var logged []string
			for _, m := range regexp.MustCompile(`"Backend is (\w+)[^"]*"[^\n]* backend="beta.io"`).FindAllStringSubmatch(string(log), -1) {
				if m[1] != "still" { // what a new process says of an outage that goes on
					logged = append(logged, m[1])
				}
			}
			assert.Equal(t, what[1:], logged, "the log, but for the beginning:\n%s", log)
			assert.Regexp(t, `"Backend is up" backend="beta.io" socket="\S+" was="gone" for="\S+" pods=1 containers=1`, string(log))
			assert.Regexp(t, `"Backend is slow[^"]*" err="[^"]*" backend="beta.io" socket="\S+" pods=1 containers=1`, string(log))
			assert.Regexp(t, `"Backend is gone[^"]*" err="[^"]*" backend="beta.io" socket="\S+" pods=1 containers=1`, string(log))

			p.end()
			p.launch()
			p.serving() // after a restart, too, there is an answer to what happened last night
			assert.Equal(t, stories(want), stories(p.events())[:len(want)])
			assert.Empty(t, p.events("-backend", "primary"))
		})
	}
}

// Each change follows the one before it, also while one process takes over from another, and no command lacks one or
// has one twice. A change during a handover was noted by both processes or missing in the recording, and tail showed
// what it had shown before.
func TestFlappingDuringHandoversIsOneStory(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.launch()
	p.runPod("web", "beta.io")
	var tail strings.Builder
	var wg sync.WaitGroup
	before := p.events()
	wg.Go(func() {
		_ = run(t.Context(), []string{"tail", "-past", "-follow", "-o", "json", "-admin", config.AdminBeside(p.front)}, &tail, io.Discard)
	})
	stop := make(chan struct{})
	var flapping sync.WaitGroup
	flapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			p.runtimes[1].Kill()
			time.Sleep(20 * time.Millisecond) // a runtime that is started again and again
			p.runtimes[1].Start()
			time.Sleep(60 * time.Millisecond)
		}
	})
	for range 3 {
		n := len(p.events())
		testkit.Eventually(t, "it flaps", func() bool { return len(p.events()) > n })
		p.handOver()
	}
	close(stop)
	flapping.Wait()
	// The last of it may still be under way: the places are compared at a moment in which nothing changes.
	var all []capture.Change
	var dump string
	var log []byte
	testkit.Eventually(t, "it is up, and stays so", func() bool {
		all = p.events()
		dump = p.says("dump")
		log = readFile(t, p.log)
		return all[len(all)-1].What == capture.Up && len(p.events()) == len(all)
	})
	require.Greater(t, len(all), len(before)+2)
	for i, c := range all[1:] {
		assert.Equal(t, all[i].What, c.Was)
		assert.True(t, c.Since.Equal(all[i].Time), "%+v follows %+v", c, all[i])
	}
	assert.Equal(t, stories(all), stories(changesIn(t, "beta.io", dump, wrapped)), "the recording")
	assert.Len(t, regexp.MustCompile(`"Backend is (up|slow|gone)[^"]*"[^\n]* backend="beta.io"`).FindAllString(string(log), -1), len(all)-1, "the log, but for the beginning")
	p.end()
	wg.Wait() // tail has looked for another process
	tailed := stories(changesIn(t, "beta.io", tail.String(), wrapped))
	require.GreaterOrEqual(t, len(tailed), len(all))
	assert.Equal(t, stories(all), tailed[:len(all)], "tail, which may show what came after")
}

// Each process said that a plugin was down since its own start.
func TestAPluginStaysDownOverProcesses(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	hooks, socket := filepath.Join(p.dir, "hooks"), filepath.Join(p.dir, "p.sock")
	require.NoError(t, os.Mkdir(hooks, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(hooks, "p.json"), []byte(`{"remote-endpoint": "`+socket+`", "runtime-hooks": ["PreRunPodSandbox"]}`), 0o600))
	p.write("hooks: " + hooks + "\n")
	changes := func() []capture.Change {
		return slices.DeleteFunc(p.happened(""), func(c capture.Change) bool { return c.Plugin == "" })
	}
	serve := func() (kill func()) {
		l, err := net.Listen("unix", socket)
		require.NoError(t, err)
		s, ended := grpc.NewServer(), make(chan error, 1)
		go func() { ended <- s.Serve(l) }()
		return sync.OnceFunc(func() { s.Stop(); assert.NoError(t, <-ended) })
	}
	p.launch()
	testkit.Eventually(t, "it is down", func() bool { return len(changes()) == 1 })
	kill := serve()
	testkit.Eventually(t, "it is ready", func() bool { return len(changes()) == 2 })
	p.handOver()
	kill()
	testkit.Eventually(t, "it is down again", func() bool { return len(changes()) == 3 })
	isDown := func() {
		testkit.Eventually(t, "it is still down", func() bool {
			text, _ := p.status()
			return strings.Contains(text, ", ready, DEGRADED: plugin p.json is down\n")
		})
	}
	p.handOver()
	isDown()
	p.crashNow()
	isDown()
	p.end()
	p.launch()
	isDown()
	kill = serve()
	defer kill()
	testkit.Eventually(t, "it is ready again", func() bool { return len(changes()) == 4 })
	all := changes()
	assert.Equal(t, []string{capture.PluginDown, capture.PluginReady, capture.PluginDown, capture.PluginReady}, whats(all))
	for i, c := range all[1:] {
		assert.Equal(t, all[i].What, c.Was)
		assert.True(t, c.Since.Equal(all[i].Time), "%+v follows %+v", c, all[i])
	}
}

// What happens to criproxy itself has the same words and order in every place, over a handover, and after a stop.
func TestEveryPlaceTellsWhatHappensToTheProxy(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.launch()
	var tail, followed strings.Builder
	var following sync.WaitGroup
	for out, command := range map[*strings.Builder][]string{&tail: {"tail", "-past"}, &followed: {"events"}} {
		following.Go(func() {
			assert.NoError(t, run(t.Context(), append(command, "-follow", "-o", "json", "-admin", config.AdminBeside(p.front)), out, io.Discard))
		})
	}
	writes := func(text, what string) {
		t.Helper()
		p.write(text)
		testkit.Eventually(t, "it is "+what, func() bool { all := p.happened(""); return all[len(all)-1].What == what })
	}
	writes("goneAfter: 20s\n", capture.Reloaded)
	writes("goneAftre: 20s\n", capture.Refused)
	writes("goneAfter: 30s\nids: native\n", capture.Reloaded)
	writes("goneAftre: 30s\n", capture.Refused)
	writes("goneAfter: 30s\n", capture.Reloaded)
	p.handOver()
	refused := `criproxy refuses a new configuration: \S+/c\.yaml:6:1: goneAftre: unknown key \(did you mean "goneAfter"\?\)`
	told := []string{
		"criproxy serves",
		"criproxy has a new configuration: goneAfter: 20s, was 10s",
		refused,
		"criproxy has a new configuration: goneAfter: 30s, was 20s; waits for a restart: ids: native, was prefix",
		refused,
		"criproxy has a new configuration: no setting has changed",
		"criproxy took over",
	}
	for _, one := range told {
		if changed, ok := strings.CutPrefix(one, "criproxy has a new configuration: "); ok {
			assert.Equal(t, 1, p.logged(` changed="`+changed+`"`), "the log: %s", changed)
		}
	}
	alike := func(where string, got []string) {
		t.Helper()
		if !assert.Len(t, got, len(told), where) {
			t.Log(strings.Join(got, "\n"))
			return
		}
		for i, want := range told {
			assert.Regexp(t, "^"+want+"$", got[i], where)
		}
	}
	sentences := func(all []capture.Change) (said []string) {
		for _, c := range all {
			said = append(said, c.String())
		}
		return said
	}
	shown := func(out string) (said []string) {
		for _, m := range regexp.MustCompile(`(?m)^\S+(?: \S+)?  (?:-- )?(criproxy (?:serves|has|refuses|took|takes)\b.*)$`).FindAllStringSubmatch(out, -1) {
			said = append(said, m[1])
		}
		return said
	}
	everywhere := func(when string) {
		t.Helper()
		alike(when+": events -o json", sentences(p.happened("")))
		for _, command := range []string{"events", "tail"} {
			out := p.says(command, "-since", "1h")
			alike(when+": "+command, shown(out))
		}
		out := p.says("tail", "-past", "-o", "json")
		alike(when+": tail -past -o json", sentences(changesIn(t, "", out, wrapped)))
		for _, f := range capture.Formats {
			dump := filepath.Join(t.TempDir(), "calls."+string(f))
			p.says("dump", dump)
			alike(when+": view of "+string(f), shown(says(t, "view", dump)))
			alike(when+": view -o json of "+string(f), sentences(changesIn(t, "", says(t, "view", "-o", "json", dump), wrapped)))
			lines := dump + ".jsonl"
			says(t, "convert", dump, lines)
			data := readFile(t, lines)
			alike(when+": "+string(f), sentences(changesIn(t, "", string(data), wrapped)))
		}
	}
	everywhere("after the handover")
	p.end()
	following.Wait() // they have looked for another process
	told = append(told, "criproxy takes no new calls", "criproxy has ended")
	alike("tail", sentences(changesIn(t, "", tail.String(), wrapped)))
	alike("events -follow", sentences(changesIn(t, "", followed.String(), unwrapped)))
	p.launch()
	p.serving()
	told = append(told, "criproxy serves")
	everywhere("after the stop")
}

// For a single runtime criproxy makes no state folder. Without one the history survives a handover and no restart, and
// criproxy events says from when on it knows anything. It used to print what was left as if it were all of the last day.
func TestAHistoryWithoutAStateFolderSaysWhereItBegins(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.writeAll("")
	state := filepath.Join(p.dir, "state")
	p.launch()
	is := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, "the runtime is "+want[len(want)-1], func() bool { return slices.Equal(want, whats(p.happened("primary"))) })
	}
	events := func(args ...string) string {
		t.Helper()
		var out, errOut strings.Builder
		require.NoError(t, run(t.Context(), append([]string{"events", "-admin", config.AdminBeside(p.front)}, args...), &out, &errOut), "%s", &errOut)
		return errOut.String()
	}
	outage := func() {
		t.Helper()
		p.runtimes[0].Kill()
		testkit.Eventually(t, "it is gone", func() bool { all := p.happened("primary"); return all[len(all)-1].What == capture.Gone })
		p.runtimes[0].Start()
		testkit.Eventually(t, "it is up", func() bool { all := p.happened("primary"); return all[len(all)-1].What == capture.Up })
	}
	begins := func() string {
		return "criproxy: nothing is known from before " + p.happened("")[0].Time.Local().Format(time.DateTime) +
			": this criproxy has no state folder, and forgets what happened when it restarts; for a single runtime it uses stateDir only if that folder exists\n"
	}
	is(capture.Up)
	outage()
	is(capture.Up, capture.Gone, capture.Up)
	p.handOver()
	is(capture.Up, capture.Gone, capture.Up)
	assert.NoDirExists(t, state)
	assert.Equal(t, 2, p.logged("The state folder does not exist, and for a single runtime criproxy makes none"), "by each process")
	assert.Equal(t, begins(), events())
	assert.Equal(t, begins(), events("-backend", "primary"))
	assert.Equal(t, "criproxy: nothing happened in the last 1ns\n", events("-since", "1ns"), "nothing more is asked for")
	p.end()
	p.launch()
	is(capture.Up)
	assert.Equal(t, begins(), events())
	p.end()

	missing := p.logged("The state folder does not exist")
	require.NoError(t, os.Mkdir(state, 0o700)) // as a package does
	p.launch()
	is(capture.Up)
	outage()
	testkit.Eventually(t, "the calls and errors are in files, too", func() bool {
		recorded, _ := filepath.Glob(filepath.Join(state, "recorder-*.blocks"))
		_, err := os.Stat(filepath.Join(state, "evidence.json"))
		return err == nil && len(recorded) == 1
	})
	p.end()
	p.launch()
	testkit.Eventually(t, "it is up again", func() bool { return len(p.happened("primary")) > 3 })
	assert.Equal(t, []string{capture.Up, capture.Gone, capture.Up, capture.Up}, whats(p.happened("primary")))
	assert.Empty(t, events())
	p.end()
	assert.Equal(t, missing, p.logged("The state folder does not exist"))
}
