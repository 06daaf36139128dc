package outage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// An upgrade is a node whose criproxy is first the previous release, then this one, and the previous one again. A plugin
// is registered, and all calls are captured.
type upgrade struct {
	*node
	program        string            // what is installed
	programs       map[string]string // :: version → a program to install
	captured, asks string            // the file of the capture; a folder of plugins
	passesCallsOn  bool              // the previous release hands over what it has recorded in a form that this version reads
}

const (
	previous = "the previous release"
	current  = "this version"
)

func newUpgrade(t *testing.T, lane string) *upgrade {
	t.Helper()
	before, err := build.PreviousProxy()
	if errors.Is(err, build.ErrNoHistory) {
		untested.Skip(t, err)
	}
	require.NoError(t, err)
	release, err := build.Previous()
	require.NoError(t, err)
	now, err := build.Proxy()
	require.NoError(t, err)
	dir := t.TempDir()
	u := &upgrade{
		program: filepath.Join(dir, "criproxy"), programs: map[string]string{previous: before, current: now},
		captured: filepath.Join(dir, "calls.jsonl"), asks: testkit.SocketDir(t),
		passesCallsOn: strings.HasPrefix(release.Name, "v"), // what comes before the first release does not
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		p := plugin.Plugin{Name: "shares", Folder: u.asks, Socket: filepath.Join(u.asks, "shares.sock"), PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			answer := plugin.Echo(c)
			answer.ContainerAnnotations = map[string]string{"asked.test/plugin": "yes"}
			return answer, nil
		}}
		assert.NoError(t, p.Run(ctx))
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	u.install(t, previous)
	u.node = newNode(t, lane, variant{program: u.program, flags: []string{"-capture", u.captured, "-hooks", u.asks}})
	u.pluginIsReady(t)
	u.runAll(t)
	return u
}

// install puts a version where the program is; what runs goes on.
func (u *upgrade) install(t *testing.T, version string) {
	t.Helper()
	data, err := os.ReadFile(u.programs[version])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(u.program+".new", data, 0o755))
	require.NoError(t, os.Rename(u.program+".new", u.program))
}

// report asks criproxy for its status.
func (u *upgrade) report(t *testing.T) (r struct {
	Version, DataPath string
	Hooks             struct{ Plugins []struct{ State string } }
}) {
	t.Helper()
	require.NoError(t, proxy.AskJSON(t.Context(), u.proxy.Admin(), "/status", &r))
	return r
}

func (u *upgrade) pluginIsReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the plugin is ready", func() bool {
		r := u.report(t)
		return len(r.Hooks.Plugins) == 1 && r.Hooks.Plugins[0].State == "ready"
	})
}

// serves asserts which version serves, and that it asks the plugin.
func (u *upgrade) serves(t *testing.T, version string) {
	t.Helper()
	assert.Equal(t, version == previous, u.report(t).Version == "previous", "which version serves")
	u.pluginIsReady(t)
}

// recorded asserts that this version shows calls that began before a time.
func (u *upgrade) recorded(t *testing.T, since time.Time) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "calls.jsonl")
	out, err := host.Command(t.Context(), u.programs[current], "dump", "-admin", u.proxy.Admin(), file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		var ev struct{ Time time.Time }
		if json.Unmarshal([]byte(line), &ev) == nil && !ev.Time.IsZero() {
			assert.True(t, ev.Time.Before(since), "the recorder begins at %s, after %s", ev.Time, since)
			return
		}
	}
	assert.Fail(t, "the recorder has nothing")
}

// One runtime is gone meanwhile. Exec streams and a long call are under way each time.
func TestAnUpgradeAndTheWayBackInAnOutageChangeNothing(t *testing.T) {
	t.Parallel()
	u := newUpgrade(t, "upgrade")
	u.measure(t, u.one)
	for _, step := range []struct {
		to      string
		restart bool
	}{{current, false}, {previous, false}, {current, true}, {previous, true}} {
		also, age := "handed over to "+step.to, time.Duration(0)
		if step.restart {
			also, age = "restarted as "+step.to, maxPLEGAge+7*time.Second
		}
		u.suffer(t, outage{kind: 'K', length: span(12, 30), also: also, harmless: true, age: age, during: func(t *testing.T) {
			began := time.Now()
			ended := u.underWay(t)
			u.install(t, step.to)
			if step.restart {
				require.NoError(t, ended())
				require.NoError(t, u.proxy.Kill())
				require.NoError(t, u.proxy.Start(t.Context()))
			} else {
				u.handOver(t)
				require.NoError(t, ended(), "a call and a stream that were under way")
			}
			u.serves(t, step.to)
			if step.to == current && !step.restart && u.passesCallsOn {
				u.recorded(t, began)
			}
			u.awaitRelists(t, 3)
		}})
	}
	// One capture of all processes, which this version reads.
	files, err := filepath.Glob(strings.TrimSuffix(u.captured, ".jsonl") + "*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		out, err := host.Command(t.Context(), u.programs[current], "view", "-stats", f).CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "ListPodSandbox", f)
	}
}

// underWay begins a call and a stream of exec on the runtime that is there, and returns a function that waits for their
// ends.
func (u *upgrade) underWay(t *testing.T) (ended func() error) {
	t.Helper()
	client, err := runtimes.Runtime(t.Context(), u.proxy.Endpoint())
	require.NoError(t, err)
	id := u.running(t, u.one, "first").Container
	results := make(chan error, 2)
	go func() {
		defer client.Close(context.Background())
		out, _, err := client.ExecSync(t.Context(), id, []string{"app", "wait", "5s", "then", "print", "late"}, 2*time.Minute)
		if err == nil && string(out) != "late\n" {
			err = fmt.Errorf("ExecSync said %q", out)
		}
		results <- err
	}()
	go func() {
		out, _, err := u.kubelet.Exec(t.Context(), "first", "app", "app", "wait", "5s", "then", "print", "late")
		if err == nil && out != "late\n" {
			err = fmt.Errorf("exec said %q", out)
		}
		results <- err
	}()
	return func() error { return errors.Join(<-results, <-results) }
}

// What docs/operations.md has for upgrades, by a person who only has the commands: upgrade, the other data path and back,
// and the way back, while crictl asks all the time.
func TestCrictlLosesNoCallByUpgradesAndDataPaths(t *testing.T) {
	t.Parallel()
	u := newUpgrade(t, "person")
	before := map[string]map[string][]task{"one": u.tasks(t, u.one), "two": u.tasks(t, u.two)}
	ids := []string{u.running(t, u.one, "first").Container, two + "__" + u.running(t, u.two, "plain").Container}
	crictl := testbed.Require(t, build.Crictl).Crictl
	ctx, stop := context.WithCancel(t.Context())
	var looping sync.WaitGroup
	var calls atomic.Int64
	var lost []string // read it when crictl has ended
	looping.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			args := [][]string{{"pods"}, {"ps", "-a"}, {"exec", "-s", ids[0], "app", "print", "here"}, {"inspect", ids[1]}, {"images"}, {"exec", "-s", ids[1], "app", "print", "here"}, {"version"}}[i%7]
			cmd := host.CommandWithin(context.Background(), 2*time.Minute, crictl, append([]string{"-t", "60s", "-r", u.proxy.Endpoint(), "-i", u.proxy.Endpoint()}, args...)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			calls.Add(1)
			if text := out.String(); err != nil || args[0] == "pods" && (!strings.Contains(text, "first") || !strings.Contains(text, "plain")) {
				lost = append(lost, fmt.Sprintf("crictl %s: %v\n%s", strings.Join(args, " "), err, text))
			}
		}
	})
	for _, step := range []struct{ version, path string }{
		{current, "own"}, {current, "grpc"}, {current, "own"}, {previous, ""}, {current, "grpc"}, {previous, ""},
	} {
		at := calls.Load()
		u.say("%s, data path %q", step.version, step.path)
		yaml := u.yaml
		if step.path != "" {
			yaml = "dataPath: " + step.path + "\n" + yaml
		}
		// The new file, the new program, and a handover, in the order in which no process reads what it does not know.
		if step.version == current {
			u.install(t, step.version)
			u.handOverWith(t, yaml)
			assert.Equal(t, step.path, u.report(t).DataPath)
		} else {
			u.reloaded(t, yaml)
			u.install(t, step.version)
			u.handOver(t)
		}
		u.serves(t, step.version)
		require.Eventually(t, func() bool { return calls.Load() > at+7 }, 3*time.Minute, 50*time.Millisecond, "crictl goes on")
	}
	stop()
	looping.Wait()
	u.say("crictl made %d calls", calls.Load())
	assert.Empty(t, lost, "of %d calls", calls.Load())
	assert.Equal(t, before["one"], u.tasks(t, u.one), "sandboxes, containers and processes are the same")
	assert.Equal(t, before["two"], u.tasks(t, u.two))
}

// handOverWith hands over to a process with another configuration. The one that runs may not know all its keys: it then
// refuses it and goes on with what it has.
func (u *upgrade) handOverWith(t *testing.T, yaml string) {
	t.Helper()
	require.NoError(t, u.proxy.Configure(yaml))
	u.handOver(t)
}

// reloaded makes the process that runs read another configuration, of which some waits for a restart.
func (u *upgrade) reloaded(t *testing.T, yaml string) {
	t.Helper()
	at := u.mark(t)
	require.NoError(t, u.proxy.Configure(yaml))
	u.awaitProxy(t, at, 30*time.Second, "Reloaded the configuration")
}
