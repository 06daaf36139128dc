package bounded

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/watchdog"
)

// partVariable says which part the test binary plays: a run that hangs, or the program for which that waits.
const partVariable = "CRIPROXY_BOUNDED_PART"

func TestMain(m *testing.M) {
	if os.Getenv(partVariable) == "program" {
		silent()
	}
	os.Exit(Run(m))
}

// silent is what the program does.
func silent() {
	fmt.Println("up")
	time.Sleep(time.Hour)
	os.Exit(0)
}

// TestHangs is the run that hangs, for TestARunThatHangsSaysWhere.
func TestHangs(t *testing.T) {
	if os.Getenv(partVariable) != "run" {
		t.Skip("only a part of another test")
	}
	cmd := Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), partVariable+"=program")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	watchdog.Expire()
	require.NoError(t, cmd.Wait())
}

func TestARunThatHangsSaysWhere(t *testing.T) {
	cmd := Command(t, os.Args[0], "-test.run=^TestHangs$")
	cmd.Env = append(os.Environ(), partVariable+"=run")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	assert.Regexp(t, `(?m)^   TestHangs for \d+s$`, string(out))
	for _, text := range []string{"bounded.TestHangs(", "SIGQUIT", "bounded.silent("} {
		assert.Contains(t, string(out), text)
	}
}
