package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// abandonVariable makes the test binary a run that claims a folder and waits to be killed.
const abandonVariable = "CRIPROXY_TESTBED_ABANDON"

func TestMain(m *testing.M) {
	if os.Getenv(abandonVariable) != "" {
		abandon()
	}
	os.Exit(m.Run())
}

// abandon makes what an instance has, prints its folder and waits until the test ends.
func abandon() {
	Own()
	dir, err := NewDir("", "x.sock")
	if err == nil && len(Requirements()) == 0 {
		if err = os.Mkdir(filepath.Join(dir, "root"), 0o755); err == nil {
			err = ShareMount(filepath.Join(dir, "root"))
		}
		if err == nil {
			_, err = ClaimBridge(dir)
		}
		if err == nil {
			err = MakeCgroup(Cgroup("abandoned", dir))
		}
		if err == nil {
			err = pause(Cgroup("abandoned", dir))
		}
	}
	fmt.Println(dir, err)
	os.Stdin.Read(make([]byte, 1)) // until the test ends, in any way
	os.Exit(0)
}

// pause starts a process in a cgroup, and freezes it as a runtime does with a container.
func pause(cgroup string) error {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		return err
	}
	paused := false
	for _, folder := range cgroupFolders(cgroup) {
		if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			return err
		}
		paused = os.WriteFile(filepath.Join(folder, "freezer.state"), []byte("FROZEN"), 0) == nil || paused
		paused = os.WriteFile(filepath.Join(folder, "cgroup.freeze"), []byte("1"), 0) == nil || paused
	}
	if !paused {
		return errors.New("this machine can freeze no cgroup")
	}
	return nil
}

// startRun starts a run of tests and returns it with its folder.
func startRun(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), abandonVariable+"=1")
	cmd.WaitDelay = time.Second
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	dir, failed, _ := strings.Cut(strings.TrimSpace(line), " ")
	require.Equal(t, "<nil>", failed)
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		assert.NoError(t, Clean(dir))
	})
	return cmd, dir
}

// Before, 17 bridges, 53 mounts and 21 folders stayed for ever after a kill -9: issue 44.
func TestWhatAKilledRunLeftIsRemovedByTheNext(t *testing.T) {
	killed, dead := startRun(t)
	_, living := startRun(t)
	up, err := NewDir("", "x.sock") // as testbed up does: nobody owns it
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, Clean(up)) })

	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())
	want := Leftovers(dead)
	require.NotEmpty(t, want)

	removed, err := CleanAbandoned()
	require.NoError(t, err)
	assert.Empty(t, Leftovers(dead))
	said := strings.Join(removed, "\n")
	assert.Contains(t, said, fmt.Sprintf("%s, which process %d left", dead, killed.Process.Pid))
	for _, trace := range want {
		assert.Contains(t, said, trace, "it names what it removed")
	}
	assert.DirExists(t, living)
	assert.DirExists(t, up)
	assert.NotContains(t, said, living)
	assert.NotContains(t, said, up)
}

func TestAnOwnerIsNotItsSuccessorWithTheSamePID(t *testing.T) {
	dir := t.TempDir()
	line := ownerLine(os.Getpid())
	require.NoError(t, os.WriteFile(filepath.Join(dir, marker), []byte("text\n"+line), 0o644))
	pid, alive := ownerOf(dir)
	assert.Equal(t, os.Getpid(), pid)
	assert.True(t, alive)

	other := strings.Replace(line, StartTime(os.Getpid()), "1", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, marker), []byte(other), 0o644))
	_, alive = ownerOf(dir)
	assert.False(t, alive, "another process has the pid now")

	elsewhere := strings.Replace(line, "pid:[", "pid:[9", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, marker), []byte(elsewhere), 0o644))
	pid, _ = ownerOf(dir)
	assert.Zero(t, pid, "pids of another namespace say nothing here")
}
