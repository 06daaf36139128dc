package cli

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Sockets for clients, and those of the runtimes of a demo, were asked too, in HTTP/1: they speak HTTP/2, and what they
// answered reached the user's terminal.
func TestOnlyAdminSocketsAreAsked(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/proc/self/comm", []byte("criproxy"), 0o644)) // as the process of a demo is called
	t.Cleanup(func() { assert.NoError(t, os.WriteFile("/proc/self/comm", comm, 0o644)) })

	dir := testkit.SocketDir(t)
	listen := func(name string) net.Listener {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, os.Chmod(l.Addr().String(), 0o600))
		t.Cleanup(func() { l.Close() })
		return l
	}
	private := listen("private.sock")
	var asked atomic.Int32
	go func() {
		for {
			conn, err := private.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			conn.Close()
		}
	}()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"pid": 7, "version": "1.2.3"}`))
	})}
	one := listen("one.admin.sock")
	go server.Serve(one)
	t.Cleanup(func() { server.Close() })

	var ours []Instance
	for _, found := range instances(t.Context()) {
		if filepath.Dir(found.Admin) == dir {
			ours = append(ours, found)
		}
	}
	assert.Equal(t, []Instance{{Admin: one.Addr().String(), PID: 7, Version: "1.2.3"}}, ours)
	assert.Zero(t, asked.Load())
}
