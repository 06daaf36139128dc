// Package takeover puts criproxy at the path of a runtime's own socket, by changing the
// configuration files of both, and takes that back. The runtime is containerd or CRI-O.
package takeover

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/peercred"
)

// Takeover puts criproxy at the path of a runtime's own socket, so that the clients of that
// socket need no change: the runtime listens beside it.
type Takeover struct {
	Path       string // where criproxy is to listen
	Containerd string // containerd's configuration file
	CRIO       string // the folder of CRI-O's drop-ins
	Config     string // criproxy's
	DryRun     bool

	// Served returns the process that serves the socket at a path. Nil is [peercred.Serving].
	Served func(path string) (peercred.Process, error)
}

// runtimeSocket is where the runtime listens then.
func (t *Takeover) runtimeSocket() string {
	ending := filepath.Ext(t.Path)
	return strings.TrimSuffix(t.Path, ending) + ".runtime" + ending
}

// imported is the file that containerd's configuration imports.
func (t *Takeover) imported() string {
	return filepath.Join(filepath.Dir(t.Containerd), "criproxy.toml")
}

// CheckPath returns what is wrong with the path to take over.
func (t *Takeover) CheckPath() error {
	if err := config.CheckSocketPath(t.Path); err != nil {
		return fmt.Errorf("-takeover: %w; want that of the runtime, such as /run/containerd/containerd.sock or /run/crio/crio.sock", err)
	}
	return nil
}

// Install prepares a takeover, and writes to out what it changes. It restarts nothing.
func (t *Takeover) Install(out io.Writer) error {
	if err := config.CheckSocketPath(t.runtimeSocket()); err != nil {
		return fmt.Errorf("where the runtime is to listen: %w", err)
	}
	of, err := t.whose()
	if err != nil {
		return err
	}
	ours, err := readIfThere(t.Config)
	if err != nil {
		return err
	}
	files, order, err := of.files()
	if err != nil {
		return err
	}
	own, err := t.criproxyFile(undoLines(ours))
	if err != nil {
		return config.PrefixLines(t.Config, err)
	}
	files[t.Config] = own
	changed, err := t.write(out, files, append(order, t.Config))
	if err != nil {
		return err
	}
	if !changed {
		fmt.Fprintln(out, "It is installed already: no file has to be changed.")
	}
	fmt.Fprintf(out, `
To put it into effect:
  systemctl restart %-50s# containers run on
  systemctl enable criproxy.service && systemctl restart criproxy.service
  crictl --runtime-endpoint unix://%s version
Between the two restarts no process answers there; kubelet tries again. To take it back: criproxy uninstall
`, of.unit, t.Path)
	return nil
}

// Uninstall reverts Install, and writes to out what it changes. It restarts nothing.
func (t *Takeover) Uninstall(out io.Writer) error {
	unit := "containerd.service"
	if _, err := os.Lstat(t.dropIn()); err == nil {
		unit = "crio.service"
	}
	files := map[string]string{}
	for _, path := range []string{t.Containerd, t.Config} {
		text, err := readIfThere(path)
		if err != nil {
			return err
		}
		files[path] = undoLines(text)
	}
	files[t.imported()], files[t.dropIn()] = "", ""
	changed, err := t.write(out, files, []string{t.Containerd, t.Config, t.imported(), t.dropIn()})
	if err != nil {
		return err
	}
	if !changed {
		fmt.Fprintln(out, "It is not installed: no file has to be changed.")
		return nil
	}
	fmt.Fprintf(out, `
To put it into effect, if criproxy is to go, or to listen at a socket of its own again:
  systemctl stop criproxy.service
  systemctl restart %-50s# containers run on
  systemctl start criproxy.service                                    # unless it is to go
If there was a second runtime, remove its pods before: without criproxy kubelet does not see them.
`, unit)
	return nil
}

// write gives files their contents where they differ, and writes to out what it changed. It
// removes files with empty contents.
func (t *Takeover) write(out io.Writer, files map[string]string, order []string) (changed bool, err error) {
	for _, path := range order {
		before, err := readIfThere(path)
		if err != nil {
			return changed, err
		}
		after := files[path]
		if before == after {
			continue
		}
		changed = true
		verb := "changed"
		switch {
		case before == "":
			verb = "made"
		case after == "":
			verb = "removed"
		}
		if t.DryRun {
			fmt.Fprintf(out, "%s would be %s:\n", path, verb)
		} else if err := replaceFile(path, after); err != nil {
			return changed, err
		} else {
			fmt.Fprintf(out, "%s is %s:\n", path, verb)
		}
		printDifference(out, before, after)
	}
	return changed, nil
}

func readIfThere(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

// replaceFile replaces the contents of a file at once, and keeps its owner, group and mode.
func replaceFile(path, text string) error {
	if text == "" {
		return os.Remove(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays one
	}
	next := path + ".criproxy-new"
	os.Remove(next) // what an install that was killed has left
	err := writeLike(path, next, text)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		os.Remove(next) // the error is the one before
	}
	return err
}

// writeLike makes a file with owner, group and mode of another one, if that exists.
func writeLike(model, path, text string) error {
	info, err := os.Stat(model)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	mode := os.FileMode(0o644)
	if info != nil {
		mode = 0o600 // until it has the owner and mode of the other one
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer f.Close() // a second time, mostly
	if info != nil {
		owner := info.Sys().(*syscall.Stat_t)
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("giving it owner and group of %s: %w; try as root", model, err)
		}
		if err := f.Chmod(info.Mode()); err != nil { // which the umask does not change
			return err
		}
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Close()
}

// printDifference prints the lines that only one of two texts has.
func printDifference(out io.Writer, before, after string) {
	only := func(a, b, sign string) {
		there := map[string]bool{}
		for line := range strings.Lines(b) {
			there[line] = true
		}
		for line := range strings.Lines(a) {
			if !there[line] && strings.TrimSpace(line) != "" {
				fmt.Fprintf(out, "  %s %s\n", sign, strings.TrimRight(line, "\n"))
			}
		}
	}
	only(before, after, "-")
	only(after, before, "+")
}
