package integration

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/fakecri"
)

// fake serves a runtime that keeps everything in memory, for tests that real runtimes do not support, and returns it
// with its socket.
func fake(t testing.TB, config fakecri.Config) (*fakecri.Runtime, string) {
	t.Helper()
	rt := fakecri.New(config)
	socket := filepath.Join(folder(t), "fake.sock")
	serveFake(t, rt, socket)
	return rt, socket
}

// serveFake serves a runtime at a socket until the test ends.
func serveFake(t testing.TB, rt *fakecri.Runtime, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rt.ServeOn(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
}
