package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

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
	p.end()
	p.launch()
	testkit.Eventually(t, "it is up again", func() bool { return len(p.happened("primary")) > 3 })
	assert.Equal(t, []string{capture.Up, capture.Gone, capture.Up, capture.Up}, whats(p.happened("primary")))
	assert.Empty(t, events())
	p.end()
	assert.Equal(t, missing, p.logged("The state folder does not exist"))
}
