package takeover

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
)

// imported returns the path of the file that containerd's configuration will import.
func (t *Takeover) imported() string {
	return filepath.Join(filepath.Dir(t.Containerd), "criproxy.toml")
}

// reads returns an error if a containerd was started with another configuration file than the one that Install would change.
func (t *Takeover) reads(p host.Process) error {
	file := cmp.Or(host.Flag(p.Args, "config"), host.Flag(p.Args, "c"))
	if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID)); err == nil && file != "" && !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	changed, err := filepath.Abs(t.Containerd)
	if file == "" || err == nil && host.Resolve(file) == host.Resolve(changed) {
		return nil
	}
	return fmt.Errorf("%s was started with the configuration file %s, and does not read %s; use -containerd-config %s", p, file, t.Containerd, file)
}

// containerdFiles returns the new contents of containerd's files. The imported file must exist before the configuration
// names it.
func (t *Takeover) containerdFiles() ([]file, error) {
	main, err := readIfThere(t.Containerd)
	if err != nil {
		return nil, err
	}
	imports, imported, err := t.withImport(undoLines(main))
	if err != nil {
		return nil, config.PrefixLines(t.Containerd, err)
	}
	return []file{{t.imported(), imported}, {t.Containerd, imports}}, nil
}

// withImport returns containerd's configuration with an import, and the text of the imported file. It changes only the
// address of containerd's API, not the one to which running containers report.
func (t *Takeover) withImport(main string) (imports, imported string, err error) {
	if main == "" {
		main = made + "version = 2\n"
	}
	lines := splitLines(main)
	statements, err := tomlStatements(strings.Join(lines, ""))
	if err != nil {
		return "", "", err
	}
	var paths []string
	version, at, n := 0, top(lines), 0
	for _, s := range statements {
		if tomlTable.MatchString(s.text) {
			break
		}
		if m := tomlVersion.FindStringSubmatch(s.text); m != nil {
			version, _ = strconv.Atoi(m[1]) // digits
		}
		if key := tomlImports.FindString(s.text); key != "" {
			at, n = s.line, s.lines
			if paths, err = tomlStrings(s.text[len(key):]); err != nil {
				return "", "", fmt.Errorf("line %d: imports: %w", s.line+1, err)
			}
		}
	}
	if version < 2 {
		return "", "", errors.New("the file has no version, or version 1, whose tables have other names; first convert it to a later version with containerd config migrate")
	}
	grpc, ttrpc := "[grpc]", "[ttrpc]"
	if version >= 4 {
		grpc, ttrpc = `[plugins."io.containerd.server.v1.grpc"]`, `[plugins."io.containerd.server.v1.ttrpc"]`
	}
	if address := valueIn(statements, tomlAddress, grpc, "[plugins.'io.containerd.server.v1.grpc']"); address != "" && address != t.Path {
		return "", "", fmt.Errorf("containerd listens at %s, not at %s; use -takeover %s", address, t.Path, address)
	}
	paths = append(paths, strconv.Quote(filepath.Base(t.imported())))
	imports = strings.Join(replaceLines(lines, at, n, "imports = ["+strings.Join(paths, ", ")+"]"), "")
	imported = fmt.Sprintf(written+`%s in containerd's place.
# criproxy uninstall reverts this.
version = %d

%s
  address = %q
`, t.Path, version, grpc, t.runtimeSocket())
	if valueIn(statements, tomlAddress, ttrpc, "[plugins.'io.containerd.server.v1.ttrpc']") == "" {
		imported += fmt.Sprintf("\n# Running containers report to this address.\n%s\n  address = %q\n", ttrpc, t.Path+".ttrpc")
	}
	return imports, imported, nil
}
