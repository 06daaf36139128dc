package takeover

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/host"
)

// crioNode is a node where a program serves /run/crio/crio.sock. An empty name is one that the kernel does not tell.
func crioNode(t *testing.T, program string) (*takeoverNode, *Takeover) {
	n := newTakeoverNode(t, "", "backends:\n- address: /run/crio/crio.sock\n")
	x := n.takeover()
	x.Path = "/run/crio/crio.sock"
	x.Served = func(string) (host.Process, error) {
		return host.Process{Name: program}, nil
	}
	x.Runtime = func(string) (string, error) { return "cri-o", nil }
	return n, x
}

// install -takeover /run/crio/crio.sock wrote containerd's configuration, and the node would have been without a runtime.
func TestInstallMakesCRIOListenBesideItsSocket(t *testing.T) {
	for _, program := range []string{"crio", ""} {
		n, x := crioNode(t, program)
		var out bytes.Buffer
		require.NoError(t, x.Install(&out))
		dropIn := filepath.Join(x.CRIO, "zz-criproxy.conf")
		assert.Equal(t, "# Written by criproxy install: criproxy listens at /run/crio/crio.sock in CRI-O's place.\n# criproxy uninstall reverts this.\n"+
			"[crio.api]\nlisten = \"/run/crio/crio.runtime.sock\"\n", n.read(dropIn))
		assert.Equal(t, []string{"/run/crio/crio.runtime.sock"}, n.backends())
		assert.NoFileExists(t, n.containerd)
		assert.Contains(t, out.String(), "systemctl restart crio.service ")

		x.Served = func(string) (host.Process, error) { return host.Process{Name: "criproxy"}, nil }
		out.Reset()
		require.NoError(t, x.Install(&out), "a second time, when criproxy serves it")
		assert.Contains(t, out.String(), "It is already installed")

		out.Reset()
		require.NoError(t, x.Uninstall(&out))
		assert.NoFileExists(t, dropIn)
		assert.Equal(t, "backends:\n- address: /run/crio/crio.sock\n", n.read(n.config))
		assert.Contains(t, out.String(), "systemctl restart crio.service ")
	}
}

// A second install with the path of the other runtime made the first one listen beside that path.
func TestInstallTakesOverOneSocketAtATime(t *testing.T) {
	_, crio := crioNode(t, "crio")
	require.NoError(t, os.Remove(crio.Config))
	containerd := *crio
	containerd.Path = "/run/containerd/containerd.sock"
	containerd.Served = func(string) (host.Process, error) { return host.Process{Name: "containerd"}, nil }
	for _, x := range [][2]*Takeover{{crio, &containerd}, {&containerd, crio}} {
		require.NoError(t, x[0].Install(&bytes.Buffer{}))
		var out bytes.Buffer
		assert.ErrorContains(t, x[1].Install(&out), "another socket than "+x[1].Path+"; first run criproxy uninstall")
		assert.Empty(t, out.String())
		require.NoError(t, x[0].Uninstall(&bytes.Buffer{}))
	}
}

func TestInstallRefusesRuntimesThatItCannotTell(t *testing.T) {
	n, x := crioNode(t, "cri-dockerd")
	assert.ErrorContains(t, x.Install(&bytes.Buffer{}), "cri-dockerd (process 0) serves /run/crio/crio.sock")
	assert.NoFileExists(t, n.containerd)
	assert.NoDirExists(t, x.CRIO)
}

func TestInstallRefusesAListenThatHoldsAfterOurs(t *testing.T) {
	n, x := crioNode(t, "crio")
	require.NoError(t, os.Mkdir(x.CRIO, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(x.CRIO, "10-a.conf"), []byte("[crio.api]\nlisten = '/run/crio/crio.sock'\n"), 0o644))
	require.NoError(t, x.Install(&bytes.Buffer{}), "an earlier one does not hold")
	require.NoError(t, x.Uninstall(&bytes.Buffer{}))
	later := filepath.Join(x.CRIO, "zzz.conf")
	require.NoError(t, os.WriteFile(later, []byte("[crio.api]\nlisten = '/run/crio/crio.sock'\n"), 0o644))
	assert.ErrorContains(t, x.Install(&bytes.Buffer{}), later+" makes CRI-O listen at /run/crio/crio.sock")
	assert.Equal(t, "backends:\n- address: /run/crio/crio.sock\n", n.read(n.config))
}

// The path of CRI-O's drop-ins may be that of a file, where there is no CRI-O.
func TestInstallNeedsNoFolderOfTheOtherRuntime(t *testing.T) {
	n := newTakeoverNode(t, "version = 2\n", "")
	require.NoError(t, os.WriteFile(n.takeover().CRIO, nil, 0o644))
	require.NoError(t, n.install())
	n.restores("version = 2\n", "")
}

// A drop-in that somebody else has left is no takeover: install replaces it, and uninstall names the runtime whose it is.
func TestAFileOfTheSameNameIsNoTakeover(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "another's": "# another's\n"} {
		t.Run(name, func(t *testing.T) {
			_, crio := crioNode(t, "crio")
			require.NoError(t, os.Remove(crio.Config))
			require.NoError(t, os.MkdirAll(crio.CRIO, 0o755))
			require.NoError(t, os.WriteFile(crio.dropIn(), []byte(text), 0o644))
			require.NoError(t, crio.Install(&bytes.Buffer{}))
			require.NoError(t, os.WriteFile(crio.dropIn(), []byte(text), 0o644))
			var out bytes.Buffer
			require.NoError(t, crio.Uninstall(&out))
			assert.Contains(t, out.String(), "systemctl restart crio.service")
		})
	}
}
