package testbed_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// killedVariable names the file into which a run that is going to be killed writes what it has.
const killedVariable = "CRIPROXY_TESTBED_KILLED"

// TestIsKilled is the run that is killed, for TestARunThatIsKilledInTheMiddleLeavesNothing.
func TestIsKilled(t *testing.T) {
	file := os.Getenv(killedVariable)
	if file == "" {
		t.Skip("only a part of another test")
	}
	b := start(t, runtimes.Config{Version: "2.4"})
	names := busy(t, b)
	p := testbed.NewProxy(t, "backends:\n- address: "+b.Socket()+"\n")
	_, err := b.Ctr(t.Context(), "-n", "k8s.io", "tasks", "pause", names[3])
	require.NoError(t, err)
	require.NoError(t, b.Freeze())
	require.NoError(t, p.Freeze())
	require.NoError(t, os.WriteFile(file+".new", []byte(strings.Join(append([]string{p.Dir}, names...), "\n")), 0o644))
	require.NoError(t, os.Rename(file+".new", file))
	time.Sleep(5 * time.Minute)
}

// Before, a kill -9 left bridges, mounts and folders for ever: issue 44. Here it comes while a container is paused, and
// containerd and criproxy are frozen.
func TestARunThatIsKilledInTheMiddleLeavesNothing(t *testing.T) {
	testbed.Require(t)
	file := filepath.Join(t.TempDir(), "names")
	run := exec.Command(os.Args[0], "-test.run=^TestIsKilled$")
	run.Env = append(os.Environ(), killedVariable+"="+file)
	run.Stdout, run.Stderr, run.WaitDelay = t.Output(), t.Output(), time.Second
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		run.Process.Kill()
		run.Wait()
		host.CleanAbandoned()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, host.Await(ctx, "the run to be in the middle", func() error { _, err := os.Stat(file); return err }))
	require.NoError(t, run.Process.Kill())
	require.Error(t, run.Wait())
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	names := strings.Split(string(data), "\n") // first the folders of criproxy and containerd
	require.GreaterOrEqual(t, len(machine(names...)), len(names))

	removed, err := host.CleanAbandoned()
	require.NoError(t, err)
	for _, dir := range names[:2] {
		assert.Contains(t, strings.Join(removed, "\n"), fmt.Sprintf("%s, which process %d left", dir, run.Process.Pid))
		assert.Empty(t, host.Leftovers(dir))
	}
	assert.Empty(t, machine(names...))
}
