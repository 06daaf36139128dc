package transport_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

func TestAnAddressTellsItsNetwork(t *testing.T) {
	for of, want := range map[string]string{
		"/run/containerd/containerd.sock": transport.Unix,
		"example.com:443":                 transport.TCP,
		"127.0.0.1:1":                     transport.TCP,
		"[::1]:65535":                     transport.TCP,
		"dns:///example.com:443":          transport.TCP,
		"vsock:2:1024":                    transport.Vsock,
		"vsock:4294967295:4294967295":     transport.Vsock,
	} {
		got, err := transport.Network(of)
		require.NoError(t, err, of)
		assert.Equal(t, want, got, of)
	}
}

func TestWhatIsNoAddressIsQuotedWithWhatIs(t *testing.T) {
	for _, of := range []string{
		"containerd.sock", "./containerd.sock", "unix:///run/a.sock", "example.com", "example.com:", "example.com:0", "example.com:65536",
		"example.com:https", ":443", "dns:///example.com", "::1:443",
	} {
		_, err := transport.Network(of)
		assert.ErrorContains(t, err, `invalid address "`+of+`": want the absolute path of a socket, HOST:PORT, dns:///HOST:PORT or vsock:CID:PORT`)
	}
	_, err := transport.Network("")
	assert.ErrorContains(t, err, "has no address")
	for _, of := range []string{"vsock:", "vsock:2", "vsock:2:", "vsock::1024", "vsock:host:1024", "vsock:2:1024:1", "vsock:4294967296:1"} {
		_, err := transport.Network(of)
		assert.ErrorContains(t, err, `invalid address "`+of+`": want vsock:CID:PORT, two numbers`)
	}
}

func TestDialReachesSocketsAndPorts(t *testing.T) {
	for network, at := range map[string]string{"unix": filepath.Join(testkit.SocketDir(t), "s"), "tcp": "127.0.0.1:0"} {
		l, err := net.Listen(network, at)
		require.NoError(t, err)
		conn, err := transport.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		assert.Equal(t, network, conn.RemoteAddr().Network())
		assert.NoError(t, conn.Close())
		require.NoError(t, l.Close())
	}
}

// The kernel says "connection refused", as of a socket that no process serves.
func TestAFileThatIsNotASocketIsNamed(t *testing.T) {
	dir := testkit.SocketDir(t)
	file := filepath.Join(dir, "hostname")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, mode := range map[string]string{file: "-rw-------", dir: "drwx"} {
		_, err := transport.Dial(t.Context(), path)
		assert.ErrorContains(t, err, "dial unix "+path+": it is not a socket ("+mode)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED, "no process listens there")
	}
}

func TestADialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, to := range []string{filepath.Join(testkit.SocketDir(t), "s"), "127.0.0.1:1", "vsock:4294967295:1"} {
		conn, err := transport.Dial(ctx, to)
		assert.Error(t, err, to)
		assert.Nil(t, conn, to)
	}
	_, err := transport.Dial(t.Context(), "vsock:2")
	assert.ErrorContains(t, err, "two numbers")
}

func TestABalancePolicyIsOneOfGRPC(t *testing.T) {
	for _, policy := range []string{"", "round_robin", "pick_first", "least_request_experimental"} {
		assert.NoError(t, transport.CheckBalance(policy), policy)
	}
	assert.EqualError(t, transport.CheckBalance("random"), `invalid policy "random": want round_robin, pick_first or least_request_experimental`)
}
