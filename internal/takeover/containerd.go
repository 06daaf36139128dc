package takeover

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
)

// imported is the file that containerd's configuration imports.
func (t *Takeover) imported() string {
	return filepath.Join(filepath.Dir(t.Containerd), "criproxy.toml")
}

// containerdFiles returns what containerd's files become, and in which order: what is imported has
// to exist before it is named.
func (t *Takeover) containerdFiles() (files map[string]string, order []string, err error) {
	main, err := readIfThere(t.Containerd)
	if err != nil {
		return nil, nil, err
	}
	imports, imported, err := t.withImport(undoLines(main))
	if err != nil {
		return nil, nil, config.PrefixLines(t.Containerd, err)
	}
	return map[string]string{t.imported(): imported, t.Containerd: imports}, []string{t.imported(), t.Containerd}, nil
}

// withImport returns containerd's configuration with an import, and what is
// imported: only the address changes. Where running containers report to must not.
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
		return "", "", errors.New("it has no version, or 1, which names its tables otherwise; first let containerd config migrate write one of version 2 or later")
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
# criproxy uninstall takes it back.
version = %d

%s
  address = %q
`, t.Path, version, grpc, t.runtimeSocket())
	if valueIn(statements, tomlAddress, ttrpc, "[plugins.'io.containerd.server.v1.ttrpc']") == "" {
		imported += fmt.Sprintf("\n# Containers that run know this one, and report here.\n%s\n  address = %q\n", ttrpc, t.Path+".ttrpc")
	}
	return imports, imported, nil
}
