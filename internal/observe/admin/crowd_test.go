package admin

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A scraper that opened a connection for each request and closed none took all file descriptors. See issue 40.
func TestTheOldestIdleConnectionsEnd(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "a")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	begun, end := make(chan struct{}, 1), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/quick", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-end
		_, _ = w.Write([]byte("late"))
	})
	defer serveHTTP(l, mux)()
	client := func() *http.Client {
		return &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
	}
	late := make(chan error, 1)
	go func() {
		r, err := client().Get("http://a/long")
		if err == nil {
			_ = r.Body.Close()
		}
		late <- err
	}()
	<-begun
	var silent []net.Conn
	for range 3 * mostIdle {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	for _, c := range silent[:mostIdle] {
		_, err := c.Read(make([]byte, 1))
		assert.Error(t, err, "it has ended")
	}
	r, err := client().Get("http://a/quick")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	close(end)
	assert.NoError(t, <-late, "a connection with a request stays, however old")
}
