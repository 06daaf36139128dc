package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// why said that the command is slow and the runtime is not, of a container whose shim stood still, and beside a finding that
// the runtime is slow (issue 42).
func TestTheAnswerToAProbeDecidesWhatIsSlow(t *testing.T) {
	ask := func(method, container, runtime string, second int, took time.Duration, message string) *call {
		c := made(method, runtime, second, took, codes.OK, message)
		c.about.Container, c.asked = container, time.Second
		if message != "" {
			c.code = codes.DeadlineExceeded
		}
		return c
	}
	const (
		stands  = "failed to exec in container: failed to load task: context deadline exceeded"
		runs    = "failed to exec in container: timeout 1s exceeded: context deadline exceeded"
		starts  = `failed to exec in container: failed to start exec "7f": context deadline exceeded`
		quick   = 20 * time.Millisecond
		command = "the command is slow"
		both    = command + " and the runtime is not"
	)
	slow := &capture.Change{Time: at(1), Backend: "primary", What: capture.Slow, Was: capture.Up, Why: "has not answered Status within 2s"}
	hangs := ask("ListContainers", "", "primary", 5, hung, "")
	for name, one := range map[string]struct {
		said   string
		others string // the runtime that answers other probes quickly
		more   []*call
		change *capture.Change
		cause  string
	}{
		"the shim stands still":                     {said: stands, others: "primary", cause: noAnswer},
		"nothing else is probed":                    {said: stands, cause: noAnswer},
		"the command takes long":                    {said: runs, others: "primary", cause: both},
		"another runtime is slow":                   {said: runs, others: "primary", change: &capture.Change{Time: at(1), Backend: "kata.io", What: capture.Slow}, cause: both},
		"the runtime is slow as well":               {said: runs, others: "primary", change: slow, cause: command},
		"lists hang as well":                        {said: runs, others: "primary", more: []*call{hangs}, cause: command},
		"only another runtime's probes are quick":   {said: runs, others: "kata.io"},
		"the answer does not say what took so long": {said: starts, others: "primary"},
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{now: at(59)}
			for second := 10; second < 50; second += 10 {
				if one.others != "" {
					v.calls = append(v.calls, ask("ExecSync", "other", one.others, second-1, quick, ""))
				}
				v.calls = append(v.calls, ask("ExecSync", "app", "primary", second, 2*time.Second, one.said))
			}
			underWay := ask("ExecSync", "app", "primary", 55, 4*time.Second, "")
			underWay.ended = false
			v.calls = append(v.calls, append(one.more, underWay)...)
			if one.change != nil {
				v.changes = append(v.changes, one.change)
			}
			found := slowProbes(v)
			require.Len(t, found, 1)
			assert.Equal(t, one.cause, found[0].Cause)
			assert.Equal(t, one.cause == noAnswer, found[0].Cure == wakeShim)
			require.Equal(t, one.more != nil, len(plegSlow(v)) > 0)
		})
	}
}

// runc hung in the exec of a probe, and why was silent: it was a single call, and it was answered in the end (issue 42).
func TestOneProbeThatARuntimeDoesNotEndIsReported(t *testing.T) {
	probe := func(container string, second int, took time.Duration) *call {
		c := made("ExecSync", "primary", second, took, codes.OK, "")
		c.about.Container, c.asked = container, 10*time.Second
		return c
	}
	const quick = 50 * time.Millisecond
	v := &view{now: at(59)}
	hangs := probe("app", 20, 39*time.Second)
	hangs.ended = false
	v.calls = []*call{probe("app", 10, quick), probe("other", 12, quick), hangs, probe("other", 22, quick)}
	found := slowProbes(v)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "its exec probe took 39s so far, and its time-out is 10s")
	assert.Equal(t, "the runtime did not end it at its time-out", found[0].Cause)
	assert.False(t, found[0].Over)

	hangs.ended = true
	v.calls = append(v.calls, probe("app", 59, quick))
	found = slowProbes(v)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "its exec probe took 39s, and its time-out is 10s")
	assert.True(t, found[0].Over, "the next one was quick")

	hangs.took = 19 * time.Second
	assert.Empty(t, slowProbes(v), "a single command may be slow")
}

// The first probe after a shim went on took long for no other reason, and why no longer said that the shim had not answered.
func TestTheAnswersToMostProbesDecideWhatWasSlow(t *testing.T) {
	probe := func(second int, took time.Duration, code codes.Code, message string) *call {
		c := made("ExecSync", "primary", second, took, code, message)
		c.asked = time.Second
		return c
	}
	const stands, runs = "failed to exec in container: failed to load task: context deadline exceeded", "timeout 1s exceeded: context deadline exceeded"
	last, well := probe(30, 2*time.Second, codes.DeadlineExceeded, runs), probe(40, time.Millisecond, codes.OK, "")
	v := &view{now: at(59), calls: []*call{probe(10, 2*time.Second, codes.DeadlineExceeded, stands), probe(20, 2*time.Second, codes.DeadlineExceeded, stands), last, well}}
	require.Len(t, slowProbes(v), 1)
	assert.Equal(t, noAnswer, slowProbes(v)[0].Cause)
	assert.True(t, slowProbes(v)[0].Over)
	v.calls = append(v.calls, probe(50, 2*time.Second, codes.DeadlineExceeded, runs))
	assert.Empty(t, slowProbes(v)[0].Cause, "half of them may be the command's")
}

// containerd waits two seconds for a shim. Of a probe that may take five, why said nothing.
func TestAProbeThatWasNotRunIsTold(t *testing.T) {
	v := &view{now: at(59)}
	say := func(code codes.Code, message string) {
		v.calls = nil
		for _, second := range []int{10, 20} {
			c := made("ExecSync", "primary", second, 2*time.Second, code, message)
			c.asked = 5 * time.Second
			v.calls = append(v.calls, c)
		}
	}
	say(codes.DeadlineExceeded, "failed to exec in container: failed to load task: context deadline exceeded")
	found := slowProbes(v)
	require.Len(t, found, 1)
	assert.Equal(t, "shop/web: its exec probe was not run, twice of 2 on primary; 1 exec probe at once", found[0].Text)
	assert.Equal(t, noAnswer, found[0].Cause)
	say(codes.NotFound, "failed to exec in container: failed to load task: no running task found: not found")
	assert.Empty(t, slowProbes(v), "the container has ended")
}
