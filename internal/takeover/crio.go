package takeover

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/criproxy/criproxy/internal/config"
)

// dropIn is the file that makes CRI-O listen elsewhere. CRI-O reads them by name, and the last one holds.
func (t *Takeover) dropIn() string { return filepath.Join(t.CRIO, "zz-criproxy.conf") }

// crioFiles returns what CRI-O's files become, and in which order.
func (t *Takeover) crioFiles() (files map[string]string, order []string, err error) {
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
	return map[string]string{t.dropIn(): fmt.Sprintf(written+`%s in CRI-O's place.
# criproxy uninstall takes it back.
[crio.api]
listen = %q
`, t.Path, t.runtimeSocket())}, []string{t.dropIn()}, nil
}
