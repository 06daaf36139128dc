package admin

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The server of a request that ends may answer with whatever it has by then, and net/http prefers an answer to the end of
// the request. At the end of its time a node that hung had "unexpected end of JSON input".
func TestAnAnswerToARequestThatHasEndedIsNone(t *testing.T) {
	for _, address := range []string{"/run/a.sock", "ssh://node"} {
		for _, answer := range []string{"", `{"version":"1"}`} {
			testkit.OnSimulatedClock(t, func(t *testing.T) {
				c := NewClient(address)
				c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
					<-r.Context().Done()
					return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer))}, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.Read(ctx, "version", &Version{})
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
	}
}

// net/http closes a connection that it cannot read, and may still be about to write.
func TestARequestThatComesAfterTheServersWordsSaysWhatTheyAre(t *testing.T) {
	ours, theirs := net.Pipe()
	c := &httpConn{Conn: ours}
	go func() { _, _ = theirs.Write([]byte{0}) }()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, errSpeaksGRPC)
	require.NoError(t, c.Close())
	_, err = c.Write([]byte("GET"))
	assert.ErrorIs(t, err, errSpeaksGRPC)
}

// testdata/cli/status.txtar has a socket of criproxy that ends the connection.
func TestASocketThatSpeaksGRPCIsNoAdminSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := grpc.NewServer()
	t.Cleanup(server.Stop)
	go func() { _ = server.Serve(l) }() // until Stop

	for range 200 { // its first words come before the request, or after it
		_, err = NewClient(path).Read(t.Context(), "status", &Version{})
		require.ErrorContains(t, err, path+" is not an admin socket: it speaks gRPC")
		require.ErrorContains(t, err, "p.admin.sock")
	}
}
