package host

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheServingProcessIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	want := Process{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Name: strings.TrimSpace(string(comm)), Args: os.Args}
	got, err := Serving(path)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.Regexp(t, fmt.Sprintf("^%d since [0-9]+$", os.Getpid()), got.Identity())
	assert.Empty(t, Process{PID: 0}.Identity(), "it is in another PID namespace")

	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close() // nothing was sent
	groups, err := os.Getgroups()
	require.NoError(t, err)
	assert.Len(t, Groups(conn), len(groups))

	require.NoError(t, l.Close())
	_, err = Serving(path)
	assert.ErrorIs(t, err, syscall.ENOENT)
}

func TestAStoppedProcessIsKnown(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // the error says that it was killed
	assert.NotEqual(t, "T", State(cmd.Process.Pid))
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	assert.Eventually(t, func() bool { return State(cmd.Process.Pid) == "T" }, time.Minute, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	assert.Eventually(t, func() bool { return State(cmd.Process.Pid) != "T" }, time.Minute, time.Millisecond)
}

func TestOnlyUnixSocketsHaveAProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() // nothing was sent
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close() // nothing was sent
	_, err = Of(conn)
	require.ErrorContains(t, err, "not a unix socket")
	assert.Nil(t, Groups(conn))
}

func TestAProcessIsNamedAsLongAsItLives(t *testing.T) {
	assert.Equal(t, "containerd (process 7)", Process{PID: 7, Name: "containerd"}.String())
	assert.Equal(t, "process 7", Process{PID: 7}.String())
}

func TestValuesOfFlagsAreFoundInEitherForm(t *testing.T) {
	for value, args := range map[string][]string{
		"/a.sock": {"criproxy", "-v", "3", "-admin", "/a.sock"},
		"/b.sock": {"criproxy", "serve", "--admin=/b.sock", ""},
		"/c.sock": {"criproxy", "-admin", "/a.sock", "-admin", "/c.sock"},
		"":        {"criproxy", "admin", "x", "-admin"},
	} {
		assert.Equal(t, value, Flag(args, "admin"))
	}
}
