package fakecri_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestServeReplacesAnAbandonedSocket(t *testing.T) {
	path := filepath.Join(dir(t), "cri.sock")
	l, err := fakecri.Listen(path)
	require.NoError(t, err)
	_, err = fakecri.Listen(path)
	require.ErrorContains(t, err, "a process already listens on")

	l.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false) // as if it was killed
	require.NoError(t, l.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, fakecri.New(fakecri.Config{}).Serve(ctx, path))
	assert.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	assert.ErrorContains(t, fakecri.New(fakecri.Config{}).Serve(t.Context(), path), "opening a socket", "Serve does not replace other files")
}
