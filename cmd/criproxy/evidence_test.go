package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// incident makes a call that fails, and one with a secret.
func (p *process) incident() {
	p.Helper()
	p.runtimes[1].When(testkit.Failing(status.Error(codes.Internal, "out of order"), "StartContainer"))
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	_, err := client.StartContainer(p.Context(), &runtimeapi.StartContainerRequest{ContainerId: "beta.io__7f"})
	require.ErrorContains(p, err, "out of order")
	_, _ = runtimeapi.NewImageServiceClient(p.connect(p.front)).PullImage(p.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: "a.example/b:1"}, Auth: &runtimeapi.AuthConfig{Password: "hunter2"}})
}

// remembers fails the test unless the serving process knows of the incident.
func (p *process) remembers() {
	p.Helper()
	_, r := p.status()
	require.NotEmpty(p, r.Errors)
	assert.Equal(p, "StartContainer beta.io Internal out of order", strings.Join([]string{r.Errors[0].Method, r.Errors[0].Backend, r.Errors[0].Code, r.Errors[0].Message}, " "))
	path := filepath.Join(p.dir, "dump.jsonl")
	p.says("dump", path)
	defer os.Remove(path)
	data := readFile(p, path)
	assert.Contains(p, string(data), "out of order")
	assert.Contains(p, string(data), `"method":"/runtime.v1.ImageService/PullImage"`)
	assert.NotContains(p, string(data), "hunter2")
}

func TestTheEvidenceSurvivesAHandover(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	p.incident()
	testkit.Eventually(t, "criproxy knows what the second runtime is", func() bool { _, r := p.status(); return r.Backends[1].Runtime != "" })
	p.restartRuntime(true, false)
	var out strings.Builder
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"tail", "-o", "json", "-method", "Version", "-admin", config.AdminBeside(p.front)}, &out, &out)
	}()
	for i := range 2 {
		p.handOver()
		p.remembers()
		_, r := p.status()
		require.NotEmpty(t, r.Backends[1].Outages, "after handover %d", i)
		assert.NotEmpty(t, r.Backends[1].Runtime)
	}
	p.end()
	<-ended // tail has looked for another process
	assert.Contains(t, out.String(), "another process has taken over")
}

func TestTheEvidenceSurvivesACrash(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	cmd := p.launch()
	p.incident()
	dir := filepath.Join(p.dir, "state")
	recorders := func() []string {
		files, _ := filepath.Glob(filepath.Join(dir, "recorder-*.blocks"))
		return files
	}
	files := map[string]string{filepath.Join(dir, "evidence.json"): "out of order"} // :: path → content at the end
	testkit.Eventually(t, "it is written", func() bool {
		for _, path := range recorders() {
			files[path] = "PullImage"
		}
		for path, last := range files {
			data, _ := os.ReadFile(path)
			if last == "PullImage" { // it is compressed
				var shown bytes.Buffer
				_ = run(t.Context(), []string{"view", "-full", path}, &shown, &shown)
				data = shown.Bytes()
			}
			if !strings.Contains(string(data), last) {
				return false
			}
			assert.NotContains(t, string(data), "hunter2")
		}
		return len(files) == 2
	})
	for path := range files {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	p.launch()
	p.remembers()
	testkit.Eventually(t, "the files of the old process are gone", func() bool {
		now := recorders()
		return len(now) == 1 && files[now[0]] == ""
	})
	begun := func() (c capture.Change) {
		testkit.Eventually(t, "the process says that it serves", func() bool {
			all := p.happened("")
			c = all[len(all)-1]
			return c.What == capture.Serving && c.PID == p.serving()
		})
		return c
	}
	assert.NotZero(t, begun().Missing)
	out := p.says("tail", "-past", "-pod", "web")
	assert.Contains(t, out, "-- criproxy serves (the process before crashed or was killed: calls of the ")
	p.end()
	p.launch()
	assert.Zero(t, begun().Missing, "it was stopped")
}

// A recording with secrets stays in memory.
func TestEvidenceWithSecretsIsNotKept(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.write("unsafeRaw: true\n")
	p.launch()
	p.incident()
	p.handOver()
	testkit.Eventually(t, "the new process answers, and has no secret", func() bool { // the old one has it, and may still answer
		dump, err := p.ask("dump")
		return err == nil && !strings.Contains(dump, "hunter2")
	})
	var r admin.Report
	_, r = p.status()
	assert.NotEmpty(t, r.Errors)
	p.end()
	files, _ := filepath.Glob(filepath.Join(p.dir, "state", "recorder-*"))
	assert.Empty(t, files)
}

// recorded returns the events that the serving process has, as JSON lines, by their numbers. The changes are left out.
func (p *process) recorded() map[uint64]string {
	p.Helper()
	var dump string
	testkit.Eventually(p, "a process answers that goes on", func() bool {
		var err error
		if dump, err = p.ask("dump"); err != nil {
			require.ErrorContains(p, err, "ended while it sent its calls, as in a handover")
		}
		return err == nil
	})
	all := map[uint64]string{}
	for line := range strings.Lines(dump) {
		var ev struct {
			Kind string
			Seq  uint64
		}
		require.NoError(p, json.Unmarshal([]byte(line), &ev))
		require.NotEqual(p, "missed", ev.Kind)
		if ev.Kind == "file" || ev.Kind == "change" {
			continue
		}
		if _, twice := all[ev.Seq]; twice { // require.NotContains would look at each of them
			require.Failf(p, "it is there twice", "event %d", ev.Seq)
		}
		all[ev.Seq] = line
	}
	return all
}

// Each event that one process has recorded is in the recording of the next ones, as it was: after a handover, after another
// one, and after a crash, if the file has it.
func TestEachCallIsTheSameForTheNextProcess(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	p := startedProcess(t)
	before := map[uint64]string{}
	for i := range 4 {
		client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
		for j := range 20 {
			_, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: fmt.Sprintf("call-%d-%d.", i, j)}, grpc.WaitForReady(true))
			require.Equal(t, codes.NotFound, status.Code(err))
		}
		now := p.recorded()
		for seq, line := range before {
			require.Equal(t, line, now[seq])
		}
		for j := range 20 {
			id, n := fmt.Sprintf("call-%d-%d.", i, j), 0
			for _, line := range now {
				if strings.Contains(line, id) && strings.Contains(line, `"leg":0`) && strings.Contains(line, `"kind":"request"`) {
					n++
				}
			}
			require.Equal(t, 1, n, id)
		}
		switch before = now; i {
		case 0, 1:
			old := p.serving()
			p.handOver()
			testkit.Eventually(t, "the old process has ended, which may have taken a connection meanwhile", func() bool {
				state := host.State(old)
				return state == "" || state == "Z" // its parent has not waited for it
			})
		case 2:
			p.crash(slices.Max(slices.Collect(maps.Keys(before))))
		}
	}
}

// crash kills the serving process when its file has event number last, and starts another one.
func (p *process) crash(last uint64) {
	p.Helper()
	path := filepath.Join(p.dir, "state", fmt.Sprintf("recorder-%d.blocks", p.serving()))
	testkit.Eventually(p, "the file has the last event", func() bool {
		r, err := capture.Open(path)
		if err != nil {
			return false
		}
		defer r.Close()
		var ev, next capture.Event
		for r.Next(&next) == nil {
			ev = next
		}
		return ev.Seq >= last
	})
	p.crashNow()
}

// crashNow kills the serving process, and starts another one.
func (p *process) crashNow() {
	p.Helper()
	require.NoError(p, syscall.Kill(p.serving(), syscall.SIGKILL))
	testkit.Eventually(p, "it has ended", func() bool { _, ok := p.answering(); return !ok })
	p.launch()
}

// endings returns how each call of a method has ended, by the number of the call: as "begun" if it has not ended.
func (p *process) endings(method string) map[uint64]string {
	all := map[uint64]string{}
	for _, line := range p.recorded() {
		var ev struct {
			Call         uint64
			Leg          int
			Kind, Method string
			Code         string
		}
		require.NoError(p, json.Unmarshal([]byte(line), &ev))
		switch {
		case ev.Leg > 0 || !strings.HasSuffix(ev.Method, method):
		case ev.Kind == "end":
			all[ev.Call] = ev.Code
		case all[ev.Call] == "":
			all[ev.Call] = "begun"
		}
	}
	return all
}

// Each call is in the recording of the last process as the client saw it end, whichever process served it: those that the
// processes before it served when they handed over, and those that they took meanwhile.
func TestCallsOfThePreviousProcessesAreRecorded(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	hung, thaw := p.hangs()
	stop, done := make(chan struct{}), make(chan int)
	for i := range 4 {
		client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
		go func() {
			pause := time.NewTicker(5 * time.Millisecond) // so that the recorder can archive all calls
			defer pause.Stop()
			for n := 0; ; n++ {
				select {
				case <-stop:
					done <- n
					return
				case <-pause.C:
				}
				_, err := client.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: fmt.Sprintf("call-%d-%d.", i, n)}, grpc.WaitForReady(true))
				assert.Equal(t, codes.NotFound, status.Code(err))
			}
		}()
	}
	for range 2 {
		p.handOver()
	}
	assert.Equal(t, []string{"begun"}, slices.Collect(maps.Values(p.endings("/ExecSync"))), "the first process serves it")
	thaw()
	require.NoError(t, <-hung)
	close(stop)
	var made []int
	for range 4 {
		made = append(made, <-done)
	}
	testkit.Eventually(t, "the last process has the end of the call", func() bool {
		return slices.Equal([]string{"OK"}, slices.Collect(maps.Values(p.endings("/ExecSync"))))
	})
	ends := p.endings("/ContainerStatus")
	sum := 0
	for _, n := range made {
		sum += n
	}
	assert.Len(t, ends, sum)
	for _, code := range ends {
		assert.Equal(t, "NotFound", code)
	}
}

func TestReloadsWhileCallsArePassedOnLoseNone(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	hung, thaw := p.hangs()
	p.handOver()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	const reloads = 5
	for i := range reloads {
		p.write(fmt.Sprintf("listBudget: %dms\n", 2000+i))
		require.NoError(t, syscall.Kill(p.serving(), syscall.SIGHUP))
		testkit.Eventually(t, "it has reloaded", func() bool { return p.logged("Reloaded the configuration") > i })
		_, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: fmt.Sprint("call-", i)})
		require.Equal(t, codes.NotFound, status.Code(err))
	}
	thaw()
	require.NoError(t, <-hung)
	testkit.Eventually(t, "the process has the end of the call", func() bool {
		return slices.Equal([]string{"OK"}, slices.Collect(maps.Values(p.endings("/ExecSync"))))
	})
	assert.Len(t, p.endings("/ContainerStatus"), reloads)
}

// No file can be written while two processes hand over. A crash then loses what they have recorded, and the log says so.
func TestAFullDiskLosesNoCallInAHandover(t *testing.T) {
	t.Parallel()
	dir, fill := testkit.SmallDisk(t)
	p := newProcess(t)
	require.NoError(t, os.Symlink(dir, filepath.Join(p.dir, "state")))
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	calls := func(name string) {
		for i := range 20 {
			_, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: fmt.Sprint(name, i)}, grpc.WaitForReady(true))
			require.Equal(t, codes.NotFound, status.Code(err))
		}
	}
	calls("before-")
	fill()
	testkit.Eventually(t, "the recording cannot be written", func() bool {
		calls("full-")
		time.Sleep(100 * time.Millisecond)
		return p.logged("The recording cannot be written") > 0
	})
	hung, thaw := p.hangs()
	before := p.recorded()
	p.handOver()
	thaw()
	require.NoError(t, <-hung)
	testkit.Eventually(t, "the next process has the end of the call", func() bool {
		return slices.Equal([]string{"OK"}, slices.Collect(maps.Values(p.endings("/ExecSync"))))
	})
	now := p.recorded()
	for seq, line := range before {
		require.Equal(t, line, now[seq])
	}
	p.crashNow()
	testkit.Eventually(t, "a process that starts on a full disk records that it serves", func() bool {
		dump, err := p.ask("dump")
		return err == nil && strings.Contains(dump, `"what":"serving"`)
	})
	p.lines(`"The recording cannot be written; a crash would lose it" err=".* no space left on device"`)
}

// A process that is killed after it has handed over leaves a gap that is named.
func TestAKilledPredecessorLeavesANamedGap(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	hung, thaw := p.hangs()
	defer thaw()
	old := p.serving()
	p.handOver()
	require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
	require.Error(t, <-hung)
	testkit.Eventually(t, "it is named", func() bool { return p.logged("The previous process ended before it had passed on") == 1 })
	p.lines(`calls=1 methods=\["runtime.v1.RuntimeService/ExecSync"\]`)
	_, err := runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	dump, err := p.ask("dump")
	require.NoError(t, err)
	assert.Regexp(t, `"kind":"missed".*"missed":1\b`, dump)
}
