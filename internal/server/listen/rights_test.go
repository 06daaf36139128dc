package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// runtimeSocket is a configuration whose primary's socket is open to every user.
func runtimeSocket(t *testing.T) *config.Config {
	dir := testkit.SocketDir(t)
	cfg := &config.Config{Listen: filepath.Join(dir, "s.sock"), Backends: []config.Backend{{Address: filepath.Join(dir, "runtime.sock")}}}
	l, err := net.Listen("unix", cfg.Backends[0].Address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() }) // no client has connected
	require.NoError(t, os.Chmod(cfg.Backends[0].Address, 0o606))
	return cfg
}

// inheritedAt returns a socket at the path, with a mode, as systemd passes it.
func inheritedAt(t *testing.T, path string, mode os.FileMode) *Inheritance {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() }) // it may be closed already
	require.NoError(t, os.Chmod(path, mode))
	return &Inheritance{listeners: map[string]net.Listener{path: l}}
}

func TestAnInheritedSocketGetsTheConfiguredMode(t *testing.T) {
	for said, want := range map[string]string{"": "0666", "0600": "0600", "0660": "0660"} {
		cfg := runtimeSocket(t)
		s, err := Open(config.Listener{Path: cfg.Listen, Mode: said}, cfg.Backends[0].Address, inheritedAt(t, cfg.Listen, 0o666))
		require.NoError(t, err)
		assert.Contains(t, testkit.FileRights(t, cfg.Listen), want)
		require.NoError(t, s.Close())
	}
}

func TestAnOwnerThatChangesTakesEffect(t *testing.T) {
	testkit.NeedRoot(t, "owners of sockets")
	cfg := runtimeSocket(t)
	require.NoError(t, os.Chown(cfg.Backends[0].Address, 7, 8))
	l := config.Listener{Path: cfg.Listen, Owner: "12:34", Mode: "0660"}
	s, err := Open(l, cfg.Backends[0].Address, inheritedAt(t, l.Path, 0o600))
	require.NoError(t, err)
	defer s.Close() // no client was served
	assert.Equal(t, "12:34 0660", testkit.FileRights(t, l.Path), "of a socket that was open before")
	for _, next := range []struct{ owner, mode, want string }{
		{"12:56", "0660", "12:56 0660"},
		{"12:56", "0600", "12:56 0600"},
		{":56", "0640", "0:56 0640"}, // the test runs as root
		{"", "", "7:8 0606"},         // the primary's
		{"9", "0606", "9:0 0606"},
	} {
		l.Owner, l.Mode = next.owner, next.mode
		require.NoError(t, ChangeFile(s, l, cfg.Backends[0].Address))
		s.Configure(l)
		assert.Equal(t, next.want, testkit.FileRights(t, l.Path))
	}
	require.NoError(t, os.Chown(l.Path, 1, 2))
	require.NoError(t, os.Chmod(l.Path, 0o604))
	require.NoError(t, ChangeFile(s, l, cfg.Backends[0].Address))
	assert.Equal(t, "1:2 0604", testkit.FileRights(t, l.Path), "a setting that is not repeated stays as an administrator made it")
}

func TestTheModeOfAFileThatIsNotOursStays(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"a file":         func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"a link to ours": func(path string) error { return os.Symlink(path+".away", path) },
		"a socket of another's": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() }) // no client has connected
				err = os.Chmod(path, 0o644)
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := runtimeSocket(t)
			l := config.Listener{Path: cfg.Listen, Mode: "0640"}
			s, err := Open(l, cfg.Backends[0].Address, nil)
			require.NoError(t, err)
			defer s.Close()                                       // no client was served
			require.NoError(t, os.Rename(l.Path, l.Path+".away")) // so that its inode is not given to the next one
			require.NoError(t, put(l.Path))
			before := testkit.FileRights(t, l.Path)
			l.Mode = "0600"
			require.NoError(t, ChangeFile(s, l, cfg.Backends[0].Address))
			assert.Equal(t, before, testkit.FileRights(t, l.Path))
			assert.Contains(t, testkit.FileRights(t, l.Path+".away"), "0640")
		})
	}
}
