package takeover

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
)

// Takeover puts criproxy at the path of a runtime's own socket, so that the clients of that socket need no change. The
// runtime moves to another path beside it.
type Takeover struct {
	Path       string // the path to take over
	Containerd string // containerd's configuration file
	CRIO       string // the folder of CRI-O's drop-ins
	Config     string // criproxy's
	DryRun     bool

	// Runtime asks the server at a path for the name of its container runtime, by CRI. Install needs it.
	Runtime func(path string) (name string, err error)

	// Served returns the process that serves the socket at a path. Nil means [host.Serving].
	Served func(path string) (host.Process, error)
}

// runtimeSocket returns the path at which the runtime listens after a takeover.
func (t *Takeover) runtimeSocket() string {
	ending := filepath.Ext(t.Path)
	return strings.TrimSuffix(t.Path, ending) + ".runtime" + ending
}

// CheckPath returns an error if Path cannot be the path of a socket.
func (t *Takeover) CheckPath() error {
	err := config.CheckSocketPath(t.Path)
	if t.Path == "" {
		err = errors.New("has no path")
	}
	if err != nil {
		return fmt.Errorf("-takeover: %w; want the path of the runtime's socket, such as /run/containerd/containerd.sock or /run/crio/crio.sock", err)
	}
	return nil
}

// Install changes the files for a takeover, and writes the changes to out. It restarts nothing. It changes no file before
// it knows that a runtime serves Path, and what all files will contain; if it fails, all files are as before.
func (t *Takeover) Install(out io.Writer) error {
	if real := host.Resolve(t.Path); real != t.Path { // of a link, the runtime and criproxy would get each other's socket
		fmt.Fprintf(out, "%s leads to %s: this is the socket that criproxy takes over, and clients of both paths reach it.\n", t.Path, real)
		t.Path = real
	}
	if err := config.CheckSocketPath(t.runtimeSocket()); err != nil {
		return fmt.Errorf("the new path for the runtime: %w", err)
	}
	unit, err := t.unit()
	if err != nil {
		return err
	}
	ours, err := readIfThere(t.Config)
	if err != nil {
		return err
	}
	change := t.containerdFiles
	if unit == crioUnit {
		change = t.crioFiles
	}
	files, err := change()
	if err != nil {
		return err
	}
	own, err := t.criproxyFile(undoLines(ours))
	if err != nil {
		return config.PrefixLines(t.Config, err)
	}
	changed, err := t.write(out, append(files, file{t.Config, own})...)
	if err != nil {
		return err
	}
	switch {
	case !changed:
		fmt.Fprintln(out, "It is already installed: no file needs a change.")
	case t.DryRun:
		fmt.Fprint(out, dryRun)
		return nil
	}
	fmt.Fprintf(out, `
To put this into effect:
  systemctl restart %-50s# containers go on
  systemctl enable criproxy.service && systemctl restart criproxy.service
  crictl --runtime-endpoint unix://%s version
Between the two restarts no process answers there; kubelet tries again. To undo this: criproxy uninstall
`, unit, t.Path)
	return nil
}

// Uninstall reverts Install, and writes the changes to out. It restarts nothing.
func (t *Takeover) Uninstall(out io.Writer) error {
	_, _, unit, err := t.installed()
	if err != nil {
		return err
	}
	var files []file
	for _, path := range []string{t.Containerd, t.Config} {
		text, err := readIfThere(path)
		if err != nil {
			return err
		}
		files = append(files, file{path, undoLines(text)})
	}
	changed, err := t.write(out, append(files, file{t.imported(), ""}, file{t.dropIn(), ""})...)
	if err != nil {
		return err
	}
	switch {
	case !changed:
		fmt.Fprintln(out, "It is not installed: no file needs a change.")
		return nil
	case t.DryRun:
		fmt.Fprint(out, dryRun)
		return nil
	}
	fmt.Fprintf(out, `
To put this into effect:
  systemctl stop criproxy.service
  systemctl restart %-50s# containers go on
  systemctl start criproxy.service                                    # to use it at its own socket again
If there was a second runtime, first remove its pods: without criproxy kubelet does not see them.
`, cmp.Or(unit, containerdUnit))
	return nil
}

// dryRun follows the changes that -dry-run shows.
const dryRun = "\nNothing was changed. Without -dry-run, these changes are made; no service is restarted.\n"

// The systemd units of the runtimes.
const (
	containerdUnit = "containerd.service"
	crioUnit       = "crio.service"
)

// written begins the files that make a runtime listen at another path. The path that criproxy takes over follows it.
const written = "# Written by criproxy install: criproxy listens at "

// installed returns the path and the text of the file that install wrote to make a runtime listen at another path, and
// the unit of the runtime. If only another program's file has such a name, even an empty one, it returns just the unit.
func (t *Takeover) installed() (path, text, unit string, err error) {
	for _, f := range [][2]string{{t.dropIn(), crioUnit}, {t.imported(), containerdUnit}} {
		text, err := readIfThere(f[0])
		if err != nil {
			return "", "", "", err
		}
		if strings.HasPrefix(text, written) {
			return f[0], text, f[1], nil
		}
		if _, err := os.Lstat(f[0]); err == nil && unit == "" {
			unit = f[1] // another program's file
		}
	}
	return "", "", unit, nil
}

// unit returns the unit of the runtime that serves Path, or served it before a takeover. It returns an error if Path is
// served by no runtime, or by one that Install cannot move.
func (t *Takeover) unit() (string, error) {
	path, text, unit, err := t.installed()
	if err != nil {
		return "", err
	}
	if at, ours := strings.CutPrefix(text, written); ours {
		if at, _, _ := strings.Cut(at, " in "); !host.SameSocket(at, t.Path) {
			err = fmt.Errorf("%s belongs to a takeover of another socket than %s; first run criproxy uninstall", path, t.Path)
		}
		return unit, err
	}
	ask := t.Served
	if ask == nil {
		ask = host.Serving
	}
	p, err := ask(t.Path)
	if err != nil {
		if _, missing := os.Stat(filepath.Dir(t.Path)); missing != nil {
			err = fmt.Errorf("the folder %s does not exist", filepath.Dir(t.Path))
		}
		return "", fmt.Errorf("no runtime answers at %s: %w; start the runtime, or name the socket at which it listens now", t.Path, err)
	}
	runtime, err := t.Runtime(t.Path)
	if err != nil {
		return "", fmt.Errorf("%s serves %s, but does not answer CRI as container runtimes do: %w; name the socket of the runtime that kubelet uses, and of containerd check that disabled_plugins does not name cri", p, t.Path, err)
	}
	switch name := cmp.Or(p.Name, runtime); {
	case strings.HasPrefix(name, "containerd"):
		return containerdUnit, t.reads(p)
	case strings.HasPrefix(name, "crio"), name == "cri-o":
		return crioUnit, nil
	}
	return "", fmt.Errorf("%s serves %s, but install can move only containerd and CRI-O: give that program another socket in its own settings, and set listen of criproxy to that path", p, t.Path)
}
