package dial

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// A restarted primary used to stay Unavailable, for up to 1.5 s, until the end of a pause that had begun before the restart.
// Here the pause is an hour.
func TestABackendThatReturnsIsConnectedToAtOnce(t *testing.T) {
	for name, before := range map[string]func(path string){
		"no file": func(string) {},
		"a file that was left": func(path string) {
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			require.NoError(t, l.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "dir") // the path of a socket is short
			require.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) }) // the error would change nothing
			path := filepath.Join(dir, "b.sock")
			before(path)
			told := make(chan error, 1)
			c, err := New(Config{Address: path, Watch: func(err error) { told <- err }})
			require.NoError(t, err)
			require.NoError(t, c.cc.Close())
			cc, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(c.dial),
				grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour}}))
			require.NoError(t, err)
			c.cc = &balanced{ClientConn: cc}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			defer func() { cancel(); assert.NoError(t, <-ended) }()
			next := func() error {
				select {
				case err := <-told:
					return err
				case <-time.After(20 * time.Second):
					require.Fail(t, "nothing is heard of the backend")
					return nil
				}
			}
			require.Error(t, next(), "it is away")

			if name != "no file" {
				require.NoError(t, os.Remove(path))
			}
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			s := grpc.NewServer()
			go s.Serve(l)
			defer s.Stop()
			assert.NoError(t, next(), "it is back")
		})
	}
}
