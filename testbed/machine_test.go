package testbed

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestNeedsRuntimes stands for any test that needs the testbed; TestIncapableMachines runs it as nobody.
func TestNeedsRuntimes(t *testing.T) { Require(t, App) }

func TestIncapableMachinesSkipAloudAndFailInCI(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("left out: only root can become nobody")
	}
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", tempDirPrefix)
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "tests")
	require.NoError(t, os.WriteFile(program, self, 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	for ci, want := range map[string]string{"": "--- SKIP", "true": "--- FAIL"} {
		cmd := exec.Command(program, "-test.v", "-test.run=^TestNeedsRuntimes$")
		cmd.Dir = dir
		cmd.Env = []string{"CI=" + ci, "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		assert.Equal(t, ci == "true", err != nil, "%v", err)
		assert.Contains(t, string(out), want)
		assert.Contains(t, string(out), "containers need root, and this is uid 65534")
	}
}

func TestSubnetsThatAreRoutedAreLeftAlone(t *testing.T) {
	_, near, _ := net.ParseCIDR("198.18.3.0/24")
	_, wide, _ := net.ParseCIDR("198.19.0.0/16")
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	routes := []netlink.Route{{Dst: nil}, {Dst: all}, {Dst: near}, {Dst: wide}}
	assert.False(t, routed(routes, bridgeNumber(2).subnet))
	assert.True(t, routed(routes, bridgeNumber(3).subnet))
	assert.True(t, routed(routes, bridgeNumber(300).subnet))
}

func TestBridgesHaveDifferentSubnets(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for n := range subnets {
		b := bridgeNumber(n)
		assert.False(t, seen[b.subnet])
		seen[b.subnet] = true
		assert.True(t, netip.MustParsePrefix("198.18.0.0/15").Contains(b.addr))
		assert.Less(t, len(b.name), unix.IFNAMSIZ)
	}
}

func TestMergedTablesKeepWhatIsNotReplaced(t *testing.T) {
	dst := table{"a": table{"x": 1, "y": 2}, "b": 3}
	merge(dst, table{"a": table{"y": 4, "z": table{"q": 5}}, "b": table{"r": 6}})
	assert.Equal(t, table{"a": table{"x": 1, "y": 4, "z": table{"q": 5}}, "b": table{"r": 6}}, dst)
}

func TestLongFoldersAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a-very-long-name-in-which-no-socket-would-ever-fit-however-hard-one-tries", "really")
	_, err := Config{
		Dir: dir, Registry: "127.0.0.1:1",
		Binaries: Binaries{Containerd: map[string]string{"2.4": "x"}, Runc: "x", NoSeccomp: "x", CNI: "x"},
	}.withDefaults()
	assert.ErrorContains(t, err, "too long for a socket")
	assert.NoDirExists(t, dir, "it is not even made")
}

func TestMentionsIsNotFooledByLongerPaths(t *testing.T) {
	for text, want := range map[string]bool{
		"/tmp/ctb-1/containerd.sock":             true,
		"unix:///tmp/ctb-1/containerd.sock":      true,
		"lowerdir=/tmp/ctb-1/a:/tmp/ctb-1/b":     true,
		"/tmp/ctb-1":                             false,
		"/tmp/ctb-12/containerd.sock":            false,
		"/var/tmp/ctb-1/containerd.sock":         false,
		"/var/tmp/ctb-1/c then \"/tmp/ctb-1/c\"": true,
	} {
		assert.Equal(t, want, mentions(text, "/tmp/ctb-1"), text)
	}
}
