package takeover

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/peercred"
)

// A runtime is one whose socket can be taken over.
type runtime struct {
	unit string // of systemd
	// files returns what its configuration files become, and the order in which they have to.
	files func() (files map[string]string, order []string, err error)
}

// whose returns the runtime that serves the path, or served it before it was taken over.
func (t *Takeover) whose() (*runtime, error) {
	containerd := &runtime{"containerd.service", t.containerd}
	crio := &runtime{"crio.service", t.crio}
	if _, err := os.Lstat(t.dropIn()); err == nil { // it has been taken over before
		return crio, nil
	}
	if _, err := os.Lstat(t.imported()); err == nil {
		return containerd, nil
	}
	ask := t.Served
	if ask == nil {
		ask = peercred.Serving
	}
	p, err := ask(t.Path)
	switch name := p.Name; {
	case err != nil && filepath.Base(t.Path) == "crio.sock":
		return crio, nil // it is not running
	case err != nil || strings.HasPrefix(name, "containerd"):
		return containerd, nil
	case strings.HasPrefix(name, "crio"):
		return crio, nil
	}
	return nil, fmt.Errorf("%s serves %s, and install knows how to make containerd and CRI-O listen elsewhere, not that: give it another socket by its own settings, and criproxy that path with listen", p, t.Path)
}

// containerd returns containerd's files. What is imported has to exist before it is named.
func (t *Takeover) containerd() (map[string]string, []string, error) {
	main, err := readIfThere(t.Containerd)
	if err != nil {
		return nil, nil, err
	}
	imports, imported, err := t.containerdFiles(undoLines(main))
	if err != nil {
		return nil, nil, config.PrefixLines(t.Containerd, err)
	}
	return map[string]string{t.imported(): imported, t.Containerd: imports}, []string{t.imported(), t.Containerd}, nil
}

// dropIn is the file that makes CRI-O listen elsewhere. CRI-O reads them by name, and the last one holds.
func (t *Takeover) dropIn() string { return filepath.Join(t.CRIO, "zz-criproxy.conf") }

// crio returns CRI-O's files.
func (t *Takeover) crio() (map[string]string, []string, error) {
	others, err := filepath.Glob(filepath.Join(t.CRIO, "*"))
	if err != nil {
		return nil, nil, err
	}
	for _, other := range slices.Sorted(slices.Values(others)) {
		if other <= t.dropIn() {
			continue
		}
		text, err := readIfThere(other)
		if err != nil {
			return nil, nil, err
		}
		statements, err := tomlStatements(text)
		if err != nil {
			return nil, nil, config.PrefixLines(other, err)
		}
		if at := valueIn(statements, tomlListen, "[crio.api]"); at != "" {
			return nil, nil, fmt.Errorf("%s makes CRI-O listen at %s, after %s: give it a name that sorts before that, or take listen out", other, at, t.dropIn())
		}
	}
	return map[string]string{t.dropIn(): fmt.Sprintf(`# Written by criproxy install: criproxy listens at %s in CRI-O's place.
# criproxy uninstall takes it back.
[crio.api]
listen = %q
`, t.Path, t.runtimeSocket())}, []string{t.dropIn()}, nil
}

var tomlListen = regexp.MustCompile(`^\s*listen\s*=\s*["']([^"']*)["']`)
