package testbed_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/watchdog"
	"github.com/criproxy/criproxy/testbed/host"
)

// hangVariable names the folder where the test binary plays a run that hangs, and its criproxy.
const hangVariable = "CRIPROXY_TESTBED_HANG"

// forgotten is what the hanging criproxy does.
func forgotten() {
	os.Stderr.WriteString("criproxy is up\n")
	time.Sleep(time.Minute)
	os.Exit(0)
}

// TestHangs is the run that hangs, for TestARunThatHangsSaysWhereAndLeavesNothing.
func TestHangs(t *testing.T) {
	program := os.Getenv(hangVariable)
	if program == "" {
		t.Skip("only a part of another test")
	}
	watchdog.UnderWay(t)
	dir, err := host.NewDir("", "x.sock")
	require.NoError(t, err)
	p := host.NewProcess("criproxy", filepath.Join(dir, "criproxy"))
	env := append(os.Environ(), hangVariable+"=criproxy")
	require.NoError(t, p.Start([]string{program, "-config", filepath.Join(dir, "criproxy.yaml")}, env))
	require.NoError(t, host.Await(t.Context(), "criproxy to start", func() error {
		lines, _, err := p.LogLines(0, "criproxy is up")
		if err == nil && len(lines) == 0 {
			err = io.ErrUnexpectedEOF
		}
		return err
	}))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(program), "dir"), []byte(dir), 0o644))
	watchdog.Expire()
	select {}
}

// Three runs of issue 44 ended at minute 42 with nothing that said where they hung.
func TestARunThatHangsSaysWhereAndLeavesNothing(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	temp := t.TempDir()
	program := filepath.Join(temp, "criproxy")
	require.NoError(t, os.WriteFile(program, self, 0o755))

	cmd := host.Command(t.Context(), os.Args[0], "-test.run=^TestHangs$", "-test.short", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), hangVariable+"="+program)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	said := string(out)
	assert.Contains(t, said, "   TestHangs for 0s")
	assert.Contains(t, said, "testbed_test.TestHangs(", "the goroutines of the test")
	assert.Contains(t, said, "testbed_test.forgotten(", "the goroutines of criproxy")
	dir, err := os.ReadFile(filepath.Join(temp, "dir"))
	require.NoError(t, err)
	assert.Empty(t, host.Leftovers(string(dir)))
	assert.Contains(t, said, "destroyed the instance in "+string(dir))
	if t.Failed() {
		t.Log(said)
	}
}
