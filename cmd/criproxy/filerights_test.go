package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
)

// fileRights returns owner and mode of a file, as "12:34 0640".
func fileRights(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, info.Mode().Perm())
}

// runtimeSocket is a configuration whose primary's socket is anybody's.
func runtimeSocket(t *testing.T) *config.Config {
	dir := socketDir(t)
	cfg := &config.Config{Listen: filepath.Join(dir, "s.sock"), Backends: []config.Backend{{Address: filepath.Join(dir, "runtime.sock")}}}
	l, err := net.Listen("unix", cfg.Backends[0].Address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() }) // nobody has connected
	require.NoError(t, os.Chmod(cfg.Backends[0].Address, 0o606))
	return cfg
}

// inheritedAt is a socket at the path as systemd passes it, with a mode.
func inheritedAt(t *testing.T, path string, mode os.FileMode) *inheritance {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() }) // it may be closed already
	require.NoError(t, os.Chmod(path, mode))
	return &inheritance{listeners: map[string]net.Listener{path: l}}
}

// Who tightens the mode of a socket, and is told that the configuration has been reloaded,
// believes that it is so.
func TestAModeThatChangesTakesEffectWithTheReload(t *testing.T) {
	p := newProcess(t)
	reloads := 0
	becomes := func(listeners string, want os.FileMode) {
		reloads++
		p.write(listeners)
		eventually(t, "it is reloaded", func() bool { _, r := p.status(); return r.Config.Reloads == reloads })
		info, err := os.Stat(p.front)
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm(), listeners)
	}
	mode := func(m string) string { return fmt.Sprintf("listeners: [{path: %s, mode: %q}]\n", p.front, m) }
	require.NoError(t, os.Chmod(filepath.Join(p.dir, "0.sock"), 0o640))
	p.write(mode("0666"))
	p.launch()
	connected := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	version := func() error {
		_, err := connected.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err
	}
	require.NoError(t, version())
	becomes("", 0o640) // the primary's
	becomes(mode("0606"), 0o606)
	becomes(mode("0600"), 0o600)
	assert.NoError(t, version(), "who is connected stays so")

	t.Run("a file that is made anew has it", func(t *testing.T) {
		require.NoError(t, os.Remove(p.front))
		eventually(t, "it is there again", func() bool { _, err := os.Lstat(p.front); return err == nil })
		assert.Contains(t, fileRights(t, p.front), "0600")
	})
	t.Run("a process that takes over leaves it", func(t *testing.T) {
		old := p.serving()
		require.NoError(t, syscall.Kill(old, syscall.SIGUSR2))
		eventually(t, "another process serves", func() bool { return p.serving() != old })
		assert.Contains(t, fileRights(t, p.front), "0600")
	})
	p.end()
}

func TestASocketThatWasOpenBeforeHasTheModeThatIsSaid(t *testing.T) {
	for said, want := range map[string]string{"": "0666", "0600": "0600", "0660": "0660"} {
		cfg := runtimeSocket(t)
		s, err := openListener(config.Listener{Path: cfg.Listen, Mode: said}, cfg.Backends[0].Address, inheritedAt(t, cfg.Listen, 0o666))
		require.NoError(t, err)
		assert.Contains(t, fileRights(t, cfg.Listen), want)
		require.NoError(t, s.Close())
	}
}

func TestAnOwnerThatChangesTakesEffect(t *testing.T) {
	needRoot(t, "owners of sockets")
	cfg := runtimeSocket(t)
	require.NoError(t, os.Chown(cfg.Backends[0].Address, 7, 8))
	l := config.Listener{Path: cfg.Listen, Owner: "12:34", Mode: "0660"}
	s, err := openListener(l, cfg.Backends[0].Address, inheritedAt(t, l.Path, 0o600))
	require.NoError(t, err)
	defer s.Close() // nobody was served
	assert.Equal(t, "12:34 0660", fileRights(t, l.Path), "of a socket that was open before")
	for _, next := range []struct{ owner, mode, want string }{
		{"12:56", "0660", "12:56 0660"},
		{"12:56", "0600", "12:56 0600"},
		{":56", "0640", "0:56 0640"}, // who makes it is root
		{"", "", "7:8 0606"},         // the primary's
		{"9", "0606", "9:0 0606"},
	} {
		l.Owner, l.Mode = next.owner, next.mode
		require.NoError(t, changeFile(s, l, cfg.Backends[0].Address))
		s.configure(l)
		assert.Equal(t, next.want, fileRights(t, l.Path))
	}
	require.NoError(t, os.Chown(l.Path, 1, 2))
	require.NoError(t, os.Chmod(l.Path, 0o604))
	require.NoError(t, changeFile(s, l, cfg.Backends[0].Address))
	assert.Equal(t, "1:2 0604", fileRights(t, l.Path), "what has not been said anew stays as somebody made it")
}

func TestTheModeOfAFileThatIsNotOursStays(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"a file":         func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"a link to ours": func(path string) error { return os.Symlink(path+".away", path) },
		"a socket of another's": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() }) // nobody has connected
				err = os.Chmod(path, 0o644)
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := runtimeSocket(t)
			l := config.Listener{Path: cfg.Listen, Mode: "0640"}
			s, err := openListener(l, cfg.Backends[0].Address, nil)
			require.NoError(t, err)
			defer s.Close()                                       // nobody was served
			require.NoError(t, os.Rename(l.Path, l.Path+".away")) // so that its inode is not given to the next one
			require.NoError(t, put(l.Path))
			before := fileRights(t, l.Path)
			l.Mode = "0600"
			require.NoError(t, changeFile(s, l, cfg.Backends[0].Address))
			assert.Equal(t, before, fileRights(t, l.Path))
			assert.Contains(t, fileRights(t, l.Path+".away"), "0640")
		})
	}
}
