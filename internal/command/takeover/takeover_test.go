package takeover

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// takeoverNode is the files of a node whose containerd listens at /run/c.sock.
type takeoverNode struct {
	testing.TB
	containerd, config string
}

// newTakeoverNode writes the files; an empty one is not there.
func newTakeoverNode(t testing.TB, containerd, config string) *takeoverNode {
	dir := t.TempDir()
	n := &takeoverNode{t, filepath.Join(dir, "config.toml"), filepath.Join(dir, "config.yaml")}
	for path, text := range map[string]string{n.containerd: containerd, n.config: config} {
		if text != "" {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
	return n
}

func (n *takeoverNode) takeover() *Takeover {
	return &Takeover{
		Path: "/run/c.sock", Containerd: n.containerd, CRIO: filepath.Join(filepath.Dir(n.config), "crio.conf.d"), Config: n.config,
		Served:  func(string) (host.Process, error) { return host.Process{Name: "containerd"}, nil },
		Runtime: func(string) (string, error) { return "containerd", nil },
	}
}

func (n *takeoverNode) install() error {
	return n.takeover().Install(io.Discard)
}

func (n *takeoverNode) uninstall() {
	n.Helper()
	require.NoError(n, n.takeover().Uninstall(io.Discard))
}

// read is the content of a file, or nothing.
func (n *takeoverNode) read(path string) string {
	n.Helper()
	text, err := readIfThere(path)
	require.NoError(n, err)
	return text
}

// append adds to the end of a file, as an administrator does.
func (n *takeoverNode) append(path, text string) {
	n.Helper()
	require.NoError(n, os.WriteFile(path, []byte(n.read(path)+text), 0o644))
}

// backends are the runtimes in criproxy's file.
func (n *takeoverNode) backends() (all []string) {
	n.Helper()
	var c config.Config
	require.NoError(n, c.Parse("config.yaml", []byte(n.read(n.config))))
	require.NoError(n, server.Check(&c))
	for _, b := range c.Backends {
		all = append(all, strings.TrimPrefix(b.Name+"=", "=")+b.Address)
	}
	return all
}

// restores claims that a second install changes nothing, and that uninstall restores both files to the byte.
func (n *takeoverNode) restores(containerd, config string) {
	n.Helper()
	installed := [2]string{n.read(n.containerd), n.read(n.config)}
	require.NoError(n, n.install(), "a second time")
	assert.Equal(n, installed, [2]string{n.read(n.containerd), n.read(n.config)}, "a second time")
	n.uninstall()
	assert.Equal(n, containerd, n.read(n.containerd))
	assert.Equal(n, config, n.read(n.config))
}

// A bracket ends the array, and a number sign begins a comment, only where it is in no string and no comment: containerd
// could not read its configuration, or lost its imports.
func TestInstallKeepsAllImports(t *testing.T) {
	for _, c := range []struct{ name, imports, want string }{
		{"a bracket in a comment", "imports = [ # see [1]\n  \"/etc/conf.d/*.toml\",\n]\n", `"/etc/conf.d/*.toml"`},
		{"a bracket in a glob", "imports = [\"/etc/conf.d/[0-9]*.toml\",\n  \"/etc/x.toml\"]\n", `"/etc/conf.d/[0-9]*.toml", "/etc/x.toml"`},
		{"a bracket in a literal string", "imports = ['/etc/a]b.toml',\n  '/etc/x.toml']\n", `'/etc/a]b.toml', '/etc/x.toml'`},
		{"a comment sign in a path", "imports = [\"/etc/a#b.toml\"]\n", `"/etc/a#b.toml"`},
		{"a quote in a string", `imports = ["/etc/a\"]#.toml", '/etc/"b.toml']` + "\n", `"/etc/a\"]#.toml", '/etc/"b.toml'`},
		{"a string in a comment", "imports = [\n  \"/etc/a.toml\", # not \"/etc/b.toml\", it's old\n]\n", `"/etc/a.toml"`},
		{"a long string", "imports = [\"\"\"/etc/a].toml\"\"\"]\n", `"""/etc/a].toml"""`},
		{"a key in quotes", "\"imports\" = ['/etc/a.toml']\n", `'/etc/a.toml'`},
		{"another array before", "disabled_plugins = [\n  \"cri\",\n  [\"x\"]\n]\nimports = ['/etc/a.toml']\n", `'/etc/a.toml'`},
		{"imports in a text", "title = '''\nimports = [\n[grpc]\n'''\nimports = ['/etc/a.toml']\n", `'/etc/a.toml'`},
		{"ends of lines of another system", "imports = [\r\n  '/etc/a.toml'\r\n]\r\n", `'/etc/a.toml'`},
		{"no end of the last line", "imports = ['/etc/a.toml']", `'/etc/a.toml'`},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := "version = 2\n" + c.imports
			n := newTakeoverNode(t, before, "")
			require.NoError(t, n.install())
			var code []string
			for line := range strings.Lines(n.read(n.containerd)) {
				if strings.HasPrefix(line, "#criproxy install# ") {
					assert.Contains(t, c.imports, strings.TrimSuffix(strings.TrimPrefix(line, "#criproxy install# "), "\n"))
				} else if strings.HasSuffix(line, " # criproxy install\n") && line[0] != '#' {
					code = append(code, line)
				} else if line[0] != '#' {
					assert.Contains(t, before, line)
				}
			}
			assert.Equal(t, []string{"imports = [" + c.want + ", \"criproxy.toml\"] # criproxy install\n"}, code)
			assert.Equal(t, strings.Count(c.imports, "imports"), strings.Count(n.read(n.containerd), "imports")-1, "nothing else is taken out or put in")
			n.restores(before, "")
		})
	}
}

func TestInstallRefusesWhatContainerdCannotRead(t *testing.T) {
	for text, want := range map[string]string{
		"version = 2\nimports = [\n  '/etc/a.toml'\n":          "config.toml: line 2: a bracket that opens here is not closed; close it",
		"version = 2\nimports = [\n  '/etc/a.toml]\n":          "config.toml: line 3: a string has no closing quote; add it",
		"version = 2\nimports = [\"\"\"\n/etc/a.toml\"\"\"]\n": "config.toml: line 2: imports: a string spans several lines; write it on one line",
	} {
		n := newTakeoverNode(t, text, "")
		assert.ErrorContains(t, n.install(), want)
		assert.Equal(t, text, n.read(n.containerd))
		assert.NoFileExists(t, n.config)
	}
}

// A second runtime stood in a list that began with a line of install's own, without which it was no configuration.
func TestAdditionsToInstalledFilesStayReadable(t *testing.T) {
	n := newTakeoverNode(t, "", "")
	require.NoError(t, n.install())
	n.append(n.config, "- name: kata.example\n  address: /run/kata.sock\n")
	n.append(n.containerd, "[debug]\n  level = \"debug\"\n")
	require.NoError(t, n.install(), "again")
	assert.Equal(t, []string{"/run/c.runtime.sock", "kata.example=/run/kata.sock"}, n.backends())

	n.uninstall()
	assert.Equal(t, []string{"/run/c.sock", "kata.example=/run/kata.sock"}, n.backends())
	assert.Equal(t, made+"version = 2\n[debug]\n  level = \"debug\"\n", n.read(n.containerd))

	left := [2]string{n.read(n.containerd), n.read(n.config)}
	require.NoError(t, n.install(), "after uninstall")
	n.restores(left[0], left[1])
}

func TestUninstallRestoresEveryFileThatInstallChanges(t *testing.T) {
	for name, config := range map[string]string{
		"the last line has no end":        "backends:\n- address: /run/c.sock",
		"nor has that of something else":  "listen: /run/own.sock\nbackends:\n- address: /run/c.sock\nids: native",
		"a document begins":               "---\nbackends:\n- address: /run/c.sock\n",
		"a document begins, commented":    "# ours\n\n--- # the only one\nlisten: /run/own.sock\nbackends:\n- address: /run/c.sock",
		"a document begins and ends":      "%YAML 1.1\n---\nbackends:\n- address: /run/c.sock\n...\n",
		"the primary is not the first":    "backends:\n- name: kata.example\n  address: /run/kata.sock\n- {address: /run/c.sock} # here",
		"lines end as on another system":  "---\r\nbackends:\r\n- address: /run/c.sock\r\n",
		"a mark that a person has copied": "# Made by criproxy install\nbackends:\n- address: /run/c.sock\n",
	} {
		t.Run(name, func(t *testing.T) {
			n := newTakeoverNode(t, "version = 2", config)
			require.NoError(t, n.install())
			assert.Equal(t, "/run/c.runtime.sock", n.backends()[0])
			n.restores("version = 2", config)
		})
	}
}

// What is added after a last line that had no end leaves it one.
func TestUninstallKeepsALineThatWasAddedAtTheEnd(t *testing.T) {
	n := newTakeoverNode(t, "version = 2\n", "backends:\n- address: /run/c.sock")
	require.NoError(t, n.install())
	n.append(n.config, "- name: kata.example\n  address: /run/kata.sock\n")
	require.NoError(t, n.install(), "again")
	n.uninstall()
	assert.Equal(t, "backends:\n- address: /run/c.sock\n- name: kata.example\n  address: /run/kata.sock\n", n.read(n.config))
}

// Not even the umask changes who may read and write the files.
func TestInstallAndUninstallKeepOwnerAndModeOfFiles(t *testing.T) {
	testkit.NeedRoot(t, "files of other users")
	n := newTakeoverNode(t, "version = 2\n", "backends:\n- address: /run/c.sock\n")
	for _, path := range []string{n.containerd, n.config} {
		require.NoError(t, os.Chown(path, 54321, 1)) // an arbitrary user
		require.NoError(t, os.Chmod(path, 0o662))
	}
	kept := func(after string) {
		t.Helper()
		for _, path := range []string{n.containerd, n.config} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o662), info.Mode(), after)
			owner := info.Sys().(*syscall.Stat_t)
			assert.Equal(t, [2]uint32{54321, 1}, [2]uint32{owner.Uid, owner.Gid}, after)
		}
	}
	require.NoError(t, n.install())
	kept("install")
	n.uninstall()
	kept("uninstall")
}

func TestAFailedInstallLeavesNoHalfFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.Mkdir(path, 0o755)) // over which no file can be renamed
	require.NoError(t, os.WriteFile(path+".criproxy-new", []byte("of an install that was killed"), 0o600))
	require.Error(t, replaceFile(path, "backends: []\n"))
	assert.NoFileExists(t, path+".criproxy-new")
}

// A file that cannot be replaced was found out after containerd's configuration had been changed.
func TestAFailedInstallRestoresTheOtherFiles(t *testing.T) {
	n := newTakeoverNode(t, "version = 2\n", "backends:\n- address: /run/c.sock\n")
	require.NoError(t, os.Mkdir(n.config+".criproxy-new", 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(n.config+".criproxy-new", "file"), nil, 0o600)) // so that it cannot be removed
	assert.ErrorContains(t, n.install(), "writing "+n.config+": ")
	assert.Equal(t, "version = 2\n", n.read(n.containerd))
	assert.NoFileExists(t, n.takeover().imported())
	assert.Equal(t, "backends:\n- address: /run/c.sock\n", n.read(n.config))
}

func TestInstallRefusesAPathWithoutARuntime(t *testing.T) {
	for name, test := range map[string]struct {
		served  error
		runtime error
		want    string
	}{
		"no process": {served: syscall.ECONNREFUSED, want: "no runtime answers at /c.sock: connection refused"},
		"no CRI":     {runtime: errors.New("unknown service"), want: "containerd (process 0) serves /run/c.sock, but does not answer CRI"},
		"no folder":  {served: syscall.ENOENT, want: "the folder /no/such/folder does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTakeoverNode(t, "version = 2\n", "")
			x := n.takeover()
			x.Served = func(string) (host.Process, error) { return host.Process{Name: "containerd"}, test.served }
			switch test.served {
			case syscall.ECONNREFUSED:
				x.Path = "/c.sock" // a machine need not have /run
			case syscall.ENOENT:
				x.Path = "/no/such/folder/c.sock"
			}
			x.Runtime = func(string) (string, error) { return "", test.runtime }
			for _, x.DryRun = range []bool{true, false} {
				assert.ErrorContains(t, x.Install(io.Discard), test.want)
			}
			assert.Equal(t, "version = 2\n", n.read(n.containerd))
			assert.NoFileExists(t, n.config)
			assert.NoFileExists(t, x.imported())
		})
	}
}

// After a takeover of a symbolic link, the runtime made its socket beside the link, criproxy refused to listen at the link,
// and no process served it. See issue 40.
func TestATakeoverOfALinkIsOneOfTheSocket(t *testing.T) {
	dir := testkit.SocketDir(t)
	require.NoError(t, os.Symlink("real/c.sock", filepath.Join(dir, "link.sock")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	n := newTakeoverNode(t, "version = 2\n", "")
	take := func(path string) string {
		tk := n.takeover()
		tk.Path = filepath.Join(dir, path)
		var out strings.Builder
		require.NoError(t, tk.Install(&out))
		return out.String()
	}
	assert.Contains(t, take("link.sock"), "link.sock leads to "+filepath.Join(dir, "real/c.sock"))
	var c config.Config
	require.NoError(t, c.Parse("config.yaml", []byte(n.read(n.config))))
	assert.Equal(t, filepath.Join(dir, "real/c.sock"), c.Listen)
	assert.Equal(t, []string{filepath.Join(dir, "real/c.runtime.sock")}, n.backends())
	for _, again := range []string{"real/c.sock", "link.sock"} {
		assert.Contains(t, take(again), "It is already installed", again)
	}
}

func TestATakeoverWithoutAPathSaysOnceWhatItWants(t *testing.T) {
	assert.EqualError(t, (&Takeover{}).CheckPath(), "-takeover: has no path; want the path of the runtime's socket, such as /run/containerd/containerd.sock or /run/crio/crio.sock")
}

// Of a containerd that was started with -c FILE, install changed a file that containerd does not read.
func TestInstallChangesNoFileThatContainerdDoesNotRead(t *testing.T) {
	n := newTakeoverNode(t, "version = 2\n", "")
	other := filepath.Join(t.TempDir(), "other.toml")
	for _, args := range [][]string{{"-c", other}, {"--log-level", "debug", "--config", other}, {"--config=" + other}} {
		x := n.takeover()
		x.Served = func(string) (host.Process, error) {
			return host.Process{PID: 7, Name: "containerd", Args: append([]string{"containerd"}, args...)}, nil
		}
		assert.EqualError(t, x.Install(io.Discard), "containerd (process 7) was started with the configuration file "+other+
			", and does not read "+n.containerd+"; use -containerd-config "+other)
		assert.Equal(t, "version = 2\n", n.read(n.containerd))
		x.Containerd = other
		assert.NoError(t, x.Install(io.Discard))
		x.Served = nil
		require.NoError(t, x.Uninstall(io.Discard))
	}
}
