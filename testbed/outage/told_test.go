package outage_test

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/proxy"
)

// A status is that of a runtime in the output of criproxy status.
type status struct {
	Name, State, Error string
	Remembered         float64 // answers from memory
	LastKnown          bool
	pid                int // of the criproxy
}

// backend returns the status of the affected runtime.
func (n *node) backend(t *testing.T, o outage) status {
	t.Helper()
	var all struct {
		PID      int
		Backends []status
	}
	require.NoError(t, proxy.AskJSON(t.Context(), n.proxy.Admin(), "/status", &all))
	for _, b := range all.Backends {
		if b.Name == o.name() {
			b.pid = all.PID
			return b
		}
	}
	return status{Name: o.name()}
}

// name returns criproxy's name for the affected runtime.
func (o outage) name() string {
	if o.first {
		return "primary"
	}
	return two
}

// backend returns the name of the affected runtime in criproxy's log.
func (o outage) backend() string { return `backend="` + o.name() + `"` }

// soon returns the state in which criproxy considers the runtime first.
func (o outage) soon() string {
	if o.kind == 'K' {
		return "gone"
	}
	return "slow"
}

// late returns the state at the end of the outage, or "" if that depends on the outage's length.
func (o outage) late() string {
	switch {
	case o.kind != 'S':
		return o.soon()
	case o.length >= 20*time.Second:
		return "gone" // it has answered nothing for 10 s
	}
	return ""
}

// toldSo asserts, at the end of an outage, that criproxy reports the state of the runtime, and that memory answers. It
// returns the number of answers from memory since before.
func (n *node) toldSo(t *testing.T, o outage, before status) int {
	t.Helper()
	now := n.backend(t, o)
	if want := o.late(); want != "" {
		assert.Equal(t, want, now.State, "%s: criproxy status", o)
	}
	assert.Contains(t, []string{"slow", "gone"}, now.State, "%s: criproxy status", o)
	assert.NotEmpty(t, now.Error, "%s: it says why", o)
	assert.True(t, now.LastKnown, "%s: it says that its numbers are from memory", o)
	metrics, err := n.proxy.Metrics(t.Context())
	require.NoError(t, err)
	of := func(metric string) float64 {
		value, ok := metrics[metric+`{`+o.backend()+`}`]
		assert.True(t, ok, "%s: metric %s", o, metric)
		return value
	}
	if state := n.backend(t, o).State; state == now.State { // the state may just be changing
		assert.Equal(t, state != "gone", of("criproxy_backend_up") == 1, "%s: metrics", o)
		assert.Equal(t, state == "slow", of("criproxy_backend_slow") == 1, "%s: metrics", o)
	}
	if !n.evented {
		lists := metrics[`criproxy_backend_remembered_answers_total{`+o.backend()+`,method="ListPodSandbox"}`]
		assert.Positive(t, lists, "%s: lists were answered from memory", o)
	}
	if !n.evented { // with events, the kubelet may call nothing for a while
		n.shownByTail(t, o)
	}
	if before.pid == now.pid {
		now.Remembered -= before.Remembered
	}
	assert.Positive(t, now.Remembered, "%s: answers from memory", o)
	return int(now.Remembered)
}

// onceEach asserts that criproxy has logged each change of a late runtime once: slow, and up again. On a busy machine
// there may be more than one such pair.
func (n *node) onceEach(t *testing.T, m mark, o outage) {
	t.Helper()
	said := map[string]int{}
	for _, state := range []string{"slow", "gone", "up"} {
		lines, _, err := n.proxy.LogLines(m.proxy, "Backend is "+state, o.backend())
		require.NoError(t, err)
		said[state] = len(lines)
	}
	assert.Positive(t, said["slow"], o)
	assert.Equal(t, said["slow"], said["up"], "%s: what the log says of it", o)
	assert.Zero(t, said["gone"], "%s: what the log says of it", o)
}

// shownByTail asserts that criproxy tail shows for the calls that memory answers for the runtime.
func (n *node) shownByTail(t *testing.T, o outage) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // on a busy machine the kubelet makes few calls
	defer cancel()
	tail := exec.CommandContext(ctx, n.proxy.Program, "tail", "-admin", n.proxy.Admin())
	out, err := tail.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, tail.Start())
	defer tail.Wait() // it was killed
	defer cancel()
	var seen []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if text := lines.Text(); strings.HasSuffix(text, o.name()+" from the cache") || strings.HasSuffix(text, o.name()+" from memory") { // as the previous release says it
			return
		}
	}
	assert.Fail(t, "no call that the cache answers", "%s: criproxy tail shows %s", o, strings.Join(seen[max(0, len(seen)-20):], "\n"))
}
