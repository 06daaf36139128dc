package testbed_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// TestNeedsRuntimes represents a test that needs the testbed; TestIncapableMachines runs it as the user nobody.
func TestNeedsRuntimes(t *testing.T) { testbed.Require(t, build.App) }

func TestIncapableMachinesSkipAloudAndFailInCI(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("left out: only root can become nobody")
	}
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "ctb-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "tests")
	require.NoError(t, os.WriteFile(program, self, 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	for ci, want := range map[string]string{"": "--- SKIP", "true": "--- FAIL"} {
		cmd := host.Command(t.Context(), program, "-test.v", "-test.run=^TestNeedsRuntimes$")
		cmd.Dir = dir
		cmd.Env = []string{"CI=" + ci, "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		assert.Equal(t, ci == "true", err != nil, "%v", err)
		assert.Contains(t, string(out), want)
		assert.Contains(t, string(out), "containers need root, and this is uid 65534")
	}
}
