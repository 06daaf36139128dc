package integration

import (
	"bufio"
	"context"
	"io"
	"net/http"
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
	crictl := func(stdin string, args ...string) result {
		t.Helper()
		cmd := newCommand(t.Context(), tool, append([]string{"-c", config, "-r", demo.endpoint}, args...)...)
		var stdout, stderr strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
		_ = cmd.Run() // the test checks the exit code
		return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	}

	assert.Regexp(t, `(?m)^\S+ .*Running +main +0 +\S+ +vm +default *$`, crictl("", "ps").stdout)

	assert.Equal(t, result{"hello\n", "", 0}, crictl("", "exec", demo.container, "echo", "hello"))
	assert.Equal(t, result{"typed\n", "", 0}, crictl("typed\n", "exec", "-i", demo.container, "cat"))
	shell := crictl("hostname; echo oops >&2; exit 3\n", "exec", "-i", demo.container, "sh")
	assert.Equal(t, "vm\n", shell.stdout)
	assert.Contains(t, shell.stderr, "oops\n")
	assert.Contains(t, shell.stderr, "exit code 3")

	for !strings.Contains(crictl("", "logs", demo.container).stdout, "tick\n") {
		time.Sleep(50 * time.Millisecond) // so that the container has printed its first line
	}

	attached := demo.start(t, tool, config, "attach", demo.container)
	assert.Equal(t, "tick", attached.line())

	forwarded := demo.start(t, tool, config, "port-forward", demo.pod, "0:80")
	from := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(forwarded.line())
	for range 2 { // one after the other on one connection of crictl
		reply, err := http.Get("http://" + from)
		require.NoError(t, err)
		body, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, "hello from vm, port 80\n", string(body))
	}
}

// A demo is a running demo: the socket of its criproxy, and its pod on the second runtime.
type demo struct{ endpoint, pod, container string }

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
		container: find(`crictl attach -i (\S+)`),
		pod:       find(`crictl port-forward (\S+)`),
	}
}

// start starts a crictl command that runs until it is stopped.
func (d *demo) start(t *testing.T, tool, config string, args ...string) *launchedTool {
	t.Helper()
	return launchTool(t, tool, append([]string{"-c", config, "-r", d.endpoint}, args...)...)
}

// A launchedTool is a program that runs until the test ends.
type launchedTool struct {
	t     *testing.T
	lines *bufio.Scanner
}

func launchTool(t *testing.T, program string, args ...string) *launchedTool {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
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
