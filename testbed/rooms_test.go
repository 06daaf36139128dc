package testbed_test

import (
	"go/build"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rooms are the packages of the testbed. Each may import those before it.
var rooms = []string{"internal/metrics", "internal/table", "host", "build", "internal/support", "runtimes", "kubelet", "proxy", "."}

func TestRoomsImportOneWay(t *testing.T) {
	const module = "github.com/criproxy/criproxy/testbed"
	for i, room := range rooms {
		pkg, err := build.ImportDir(room, 0)
		require.NoError(t, err)
		for _, path := range pkg.Imports {
			if below, ours := strings.CutPrefix(path, module+"/"); ours {
				assert.True(t, slices.Contains(rooms[:i], below), "%s imports %s", room, below)
			}
		}
	}
}
