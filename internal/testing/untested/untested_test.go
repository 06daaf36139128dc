package untested

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheListHasEachTestThatWasSkippedAndWhy(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, nil, 0o600))
	t.Setenv(listVariable, list)
	t.Setenv("CI", "")
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) { Skip(t, errors.New("there is no tool:\n  apt-get install tool")) })
	}
	said, err := os.ReadFile(list)
	require.NoError(t, err)
	const reason, test = "there is no tool: apt-get install tool\t", "TestTheListHasEachTestThatWasSkippedAndWhy/"
	assert.Equal(t, reason+test+"one\n"+reason+test+"two\n", string(said))
}
