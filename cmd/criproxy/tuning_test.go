package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestAllThreadsOfAProcessMayBeWokenLate(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "how late threads may be woken")
	p := startedProcess(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.serving()))
	require.NoError(t, err)
	require.Greater(t, len(threads), 2)
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns")
		if os.IsNotExist(err) {
			continue // the thread has ended
		}
		require.NoError(t, err)
		assert.Equal(t, cli.TimerSlack, strings.TrimSpace(string(slack)), "%s", thread)
	}
}
