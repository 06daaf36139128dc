package fakecri_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestServeReplacesAnAbandonedSocket(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "cri.sock")
	l, err := fakecri.Listen(path)
	require.NoError(t, err)
	_, err = fakecri.Listen(path)
	require.ErrorContains(t, err, "a process already listens on")

	l.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false) // as if it was killed
	require.NoError(t, l.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err = fakecri.Listen(path)
	require.NoError(t, err)
	assert.NoError(t, fakecri.New(fakecri.Config{}).ServeOn(ctx, l))
	assert.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = fakecri.Listen(path)
	assert.ErrorContains(t, err, "opening a socket", "it does not replace other files")
}
