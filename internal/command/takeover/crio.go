package takeover

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/criproxy/criproxy/internal/config"
)

// dropIn returns the path of the drop-in that makes CRI-O listen at another path. CRI-O reads drop-ins in the order of
// their names, and the last one takes precedence.
func (t *Takeover) dropIn() string { return filepath.Join(t.CRIO, "zz-criproxy.conf") }

// crioFiles returns the new contents of CRI-O's files.
func (t *Takeover) crioFiles() ([]file, error) {
	others, err := filepath.Glob(filepath.Join(t.CRIO, "*"))
	if err != nil {
		return nil, err
	}
	for _, other := range slices.Sorted(slices.Values(others)) {
		if other <= t.dropIn() {
			continue
		}
		text, err := readIfThere(other)
		if err != nil {
			return nil, err
		}
		statements, err := tomlStatements(text)
		if err != nil {
			return nil, config.PrefixLines(other, err)
		}
		if at := valueIn(statements, tomlListen, "[crio.api]"); at != "" {
			return nil, fmt.Errorf("%s makes CRI-O listen at %s, and takes precedence over %s: rename it so that it sorts before that file, or remove listen from it", other, at, t.dropIn())
		}
	}
	return []file{{t.dropIn(), fmt.Sprintf(written+`%s in CRI-O's place.
# criproxy uninstall reverts this.
[crio.api]
listen = %q
`, t.Path, t.runtimeSocket())}}, nil
}
