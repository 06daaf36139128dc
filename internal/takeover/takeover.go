// Package takeover puts criproxy at the path of a runtime's own socket, by changing the
// configuration files of both, and takes that back. The runtime is containerd or CRI-O.
//
// Install and Uninstall, in takeover.go, say in which order. What becomes of each file is in
// containerd.go, crio.go and criproxy.go; lines.go marks the lines that uninstall restores.
package takeover

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

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
	files, order, err := change()
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
`, unit, t.Path)
	return nil
}

// Uninstall reverts Install, and writes to out what it changes. It restarts nothing.
func (t *Takeover) Uninstall(out io.Writer) error {
	_, _, unit, err := t.installed()
	if err != nil {
		return err
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
`, cmp.Or(unit, containerdUnit))
	return nil
}

// The units of systemd that the runtimes run as.
const (
	containerdUnit = "containerd.service"
	crioUnit       = "crio.service"
)

// written begins the files that make a runtime listen beside its own socket, before the path of that.
const written = "# Written by criproxy install: criproxy listens at "

// installed returns the file by which a runtime listens beside its own socket, what is in it, and
// the unit of the runtime. Another's file of such a name, which may be empty, has the unit alone.
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
			unit = f[1] // another's file of that name
		}
	}
	return "", "", unit, nil
}

// unit returns the unit of the runtime that serves the path, or served it before it was taken over.
func (t *Takeover) unit() (string, error) {
	path, text, unit, err := t.installed()
	if err != nil {
		return "", err
	}
	if at, ours := strings.CutPrefix(text, written); ours {
		if !strings.HasPrefix(at, t.Path+" ") {
			err = fmt.Errorf("%s is of a takeover of another socket than %s; first run criproxy uninstall", path, t.Path)
		}
		return unit, err
	}
	ask := t.Served
	if ask == nil {
		ask = peercred.Serving
	}
	p, err := ask(t.Path)
	switch name := p.Name; {
	case err != nil && filepath.Base(t.Path) == "crio.sock":
		return crioUnit, nil // it is not running
	case err != nil || strings.HasPrefix(name, "containerd"):
		return containerdUnit, nil
	case strings.HasPrefix(name, "crio"):
		return crioUnit, nil
	}
	return "", fmt.Errorf("%s serves %s, and install knows how to make containerd and CRI-O listen elsewhere, not that: give it another socket by its own settings, and criproxy that path with listen", p, t.Path)
}
