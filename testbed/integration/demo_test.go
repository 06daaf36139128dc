package integration

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
)

// All crictl commands that the demo prints work.
func TestCrictlWorksOnTheDemo(t *testing.T) {
	tool := testbed.Require(t, build.Crictl).Crictl
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	demo := newCommand(ctx, criproxy(t), "demo")
	demo.Cancel = func() error { return demo.Process.Signal(os.Interrupt) }
	demo.WaitDelay = 10 * time.Second // after that it is killed
	out, err := demo.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, demo.Start())
	t.Cleanup(func() {
		cancel()
		_ = demo.Wait() // it was interrupted
	})
	lines := bufio.NewScanner(out)
	find := func(pattern string) string {
		for re := regexp.MustCompile(pattern); ; {
			require.True(t, lines.Scan(), "the demo has ended")
			if found := re.FindStringSubmatch(lines.Text()); found != nil {
				return found[1]
			}
		}
	}
	endpoint, container := find(`CONTAINER_RUNTIME_ENDPOINT=(\S+)`), find(`crictl exec -s (\S+)`) // of the second runtime
	config := filepath.Join(t.TempDir(), "crictl.yaml")
	require.NoError(t, os.WriteFile(config, []byte("timeout: 30\n"), 0o600))
	crictl := func(args ...string) string {
		t.Helper()
		return command(t, tool, append([]string{"-c", config, "-r", endpoint}, args...)...).stdout
	}
	assert.Regexp(t, `(?m)^\S+ .*Running +main +0 +\S+ +vm +default *$`, crictl("ps"))
	assert.Equal(t, "vm", strings.TrimSpace(crictl("exec", "-s", container, "hostname")))
	eventually(t, func() error { // the container prints its first line after a moment
		if log := crictl("logs", container); !strings.Contains(log, "tick\n") {
			return fmt.Errorf("the log is %q", log)
		}
		return nil
	})
}
