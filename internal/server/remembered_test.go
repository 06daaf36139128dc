package server

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestARestartWhileARuntimeIsDownChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	web, db := n.run(0, "web", 1), n.run(1, "db", 2)
	n.known()
	before := map[string][]proto.Message{}
	for _, l := range allListings()[:3] {
		var err error
		before[l.name], err = l.unary(n)
		require.NoError(t, err)
	}
	n.runtimes[1].Kill()
	n.isDown(1)
	n.stop()
	n.start()
	for _, l := range allListings()[:3] { // the first call of all is a list
		got, err := l.unary(n)
		require.NoError(t, err)
		require.Len(t, got, len(before[l.name]))
		for i := range got {
			assertProto(t, before[l.name][i], got[i])
		}
	}
	testkit.Eventually(t, "the log says whom it concerns", func() bool {
		return len(testkit.LogLines("Backend is still gone", n.cfg.Backends[1].Address, `"pods"=1 "containers"=2`)) > 0
	})
	status, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: db.containers[1]})
	require.NoError(t, err)
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, status.GetStatus().GetState())
	_, err = n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: db.containers[0]})
	testkit.AssertCode(t, codes.Unavailable, err)
	for what, err := range n.callsAbout(0, web) {
		assert.NoError(t, err, what)
	}
	n.runtimes[1].Start()
	n.isUp(1)
	for what, err := range n.callsAbout(1, db) {
		assert.NoError(t, err, what)
	}
}

func TestABrokenCacheFileIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	n := newNode(t, impatient)
	web := n.run(0, "web", 1)
	n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	n.isDown(1)
	n.stop()
	file := stateFile(n.cfg, n.cfg.Backends[1]).Path
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(file, data, 0o600))
	n.start()
	assert.NotEmpty(t, testkit.LogLines("cannot be read", file), "before the first call")
	_, err = n.Status(n.ctx(), &runtimeapi.StatusRequest{})
	assert.NoError(t, err)
	_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
	assert.NoError(t, err, "kubelet could not start without")
	for what, err := range n.callsAbout(0, web) {
		assert.NoError(t, err, what)
	}
	_, err = listPods(nil).unary(n) // waits as long as a runtime may be silent
	testkit.AssertCode(t, codes.Unavailable, err)
	assert.ErrorContains(t, err, file, "it says which file")
	assert.ErrorContains(t, err, "checksum", "and what is wrong with it")
	n.runtimes[1].Start()
	n.isUp(1)
	pods, err := listPods(nil).unary(n)
	require.NoError(t, err)
	assert.Len(t, pods, 2)
}

func TestABackendIsRememberedByItsName(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a, b := n.cfg.Backends[1], n.cfg.Backends[1]
	b.Address += "2"
	assert.Equal(t, stateFile(n.cfg, a).Path, stateFile(n.cfg, b).Path, "at whatever address")
	info, err := os.Stat(n.cfg.StateDir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700)|os.ModeDir, info.Mode(), "environments are in there")
}

// loseStateDir puts a file in the place of the state folder. It does so at once, because criproxy writes to the folder
// meanwhile, and would create a missing one.
func (n *node) loseStateDir() {
	n.Helper()
	file := n.cfg.StateDir + ".file" // not in n.TempDir, which goes before the node stops
	require.NoError(n, os.WriteFile(file, nil, 0o600))
	require.NoError(n, unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, n.cfg.StateDir, unix.RENAME_EXCHANGE))
}

func TestAnUnusableStateFolderIsOneLineInTheLog(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "diskfull.io"}})
	n.run(1, "db1", 1)
	n.known()
	n.loseStateDir()
	n.run(1, "db2", 1)
	testkit.Eventually(t, "it is said", func() bool {
		return len(testkit.LogLines("diskfull.io", n.cfg.StateDir, "writing the cache of the runtime")) > 0
	})
	n.known() // more rounds, after each of which it tries again
	assert.Len(t, testkit.LogLines("diskfull.io", n.cfg.StateDir, "writing the cache of the runtime"), 1)
	require.NoError(t, os.Remove(n.cfg.StateDir))
	n.run(1, "db3", 1)
	testkit.Eventually(t, "it is kept again", func() bool { _, err := os.Stat(stateFile(n.cfg, n.cfg.Backends[1]).Path); return err == nil })
	n.stop() // writes as well, and logs a failure
}

// A call about a removed container used to wait for the primary after a restart.
func TestARestartKeepsTheOwnersOfWhatIsRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	db := n.run(1, "db", 1)
	n.known()
	_, err := n.RemoveContainer(n.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: db.containers[0]})
	require.NoError(t, err)
	n.stop()
	n.start()
	n.isUp(1)
	n.runtimes[0].Freeze()
	_, err = n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: db.containers[0]})
	require.NoError(t, err)
	assert.Len(t, n.runtimes[1].Calls("StopContainer"), 1)
}

// criproxy status and pods counted as answers from the cache given to clients, so the figures grew because somebody looked
// at them. Issue 43.
func TestToLookDoesNotChangeTheFigures(t *testing.T) {
	t.Parallel()
	n := newNode(t, hasty)
	n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	n.isDown(1)
	remembered := func() uint64 { return n.proxy.Report(n.ctx()).Backends[1].Remembered }
	before := remembered()
	pods, err := n.proxy.Pods(n.ctx())
	require.NoError(t, err)
	require.Len(t, pods.Pods, 1)
	require.True(t, pods.Pods[0].FromCache)
	assert.Equal(t, before, remembered(), "status and pods")
	_, err = listPods(nil).unary(n)
	require.NoError(t, err)
	assert.Equal(t, before+1, remembered(), "a client")
}
