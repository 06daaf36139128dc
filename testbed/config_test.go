package testbed

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMergedTablesKeepWhatIsNotReplaced(t *testing.T) {
	dst := table{"a": table{"x": 1, "y": 2}, "b": 3}
	merge(dst, table{"a": table{"y": 4, "z": table{"q": 5}}, "b": table{"r": 6}})
	assert.Equal(t, table{"a": table{"x": 1, "y": 4, "z": table{"q": 5}}, "b": table{"r": 6}}, dst)
}

func TestLongFoldersAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a-very-long-name-in-which-no-socket-would-ever-fit-however-hard-one-tries", "really")
	_, err := Config{
		Dir: dir, Registry: "127.0.0.1:1",
		Binaries: Binaries{Containerd: map[string]string{"2.4": "x"}, Runc: "x", NoSeccomp: "x", CNI: "x"},
	}.withDefaults()
	assert.ErrorContains(t, err, "too long for a socket")
	assert.NoDirExists(t, dir, "it is not even made")
}
