package integration

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
)

// All crictl commands that the demo prints work.
func TestCrictlWorksOnTheDemo(t *testing.T) {
	program := criproxy(t)
	tool := testbed.Require(t, build.Crictl).Crictl
	demo := startDemo(t, program)
	config := filepath.Join(t.TempDir(), "crictl.yaml")
	require.NoError(t, os.WriteFile(config, []byte("timeout: 30\n"), 0o600))
	crictl := func(args ...string) string {
		t.Helper()
		cmd := newCommand(t.Context(), tool, append([]string{"-c", config, "-r", demo.endpoint}, args...)...)
		out, _ := cmd.Output() // the test checks what it prints
		return string(out)
	}

	assert.Regexp(t, `(?m)^\S+ .*Running +main +0 +\S+ +vm +default *$`, crictl("ps"))
	assert.Equal(t, "vm", strings.TrimSpace(crictl("exec", "-s", demo.container, "hostname")))
	for !strings.Contains(crictl("logs", demo.container), "tick\n") {
		time.Sleep(50 * time.Millisecond) // so that the container has printed its first line
	}
}

// A demo is a running demo: the socket of its criproxy, and its container on the second runtime.
type demo struct{ endpoint, container string }

func startDemo(t *testing.T, program string) *demo {
	t.Helper()
	out := launchTool(t, program, "demo")
	find := func(pattern string) string {
		for re := regexp.MustCompile(pattern); ; {
			if found := re.FindStringSubmatch(out.line()); found != nil {
				return found[1]
			}
		}
	}
	return &demo{
		endpoint:  find(`CONTAINER_RUNTIME_ENDPOINT=(\S+)`),
		container: find(`crictl exec -s (\S+)`),
	}
}

// A launchedTool is a program that runs until the test ends.
type launchedTool struct {
	t     *testing.T
	lines *bufio.Scanner
}

func launchTool(t *testing.T, program string, args ...string) *launchedTool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second // after that it is killed
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was interrupted
	})
	return &launchedTool{t, bufio.NewScanner(out)}
}

// line returns the next line that the program prints.
func (l *launchedTool) line() string {
	l.t.Helper()
	require.True(l.t, l.lines.Scan(), "the program has ended")
	return l.lines.Text()
}
