package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// backends is the configuration file of a proxy in front of sockets, the first of them the primary, the second two.test.
func backends(sockets ...string) string {
	text := "backends:\n- address: " + sockets[0] + "\n"
	for _, socket := range sockets[1:] {
		text += fmt.Sprintf("- {name: %s, address: %s}\n", second, socket)
	}
	return text
}

// waitForAll returns when lists are complete: every runtime behind the proxy answers.
func waitForAll(ctx context.Context, p *proxy.Proxy) error {
	conn, err := runtimes.Dial(p.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = host.Await(ctx, "criproxy to answer with whole lists", func() (err error) {
		for _, method := range []string{rt("ListPodSandbox"), rt("ListContainers"), img("ListImages")} {
			if err == nil {
				err = conn.Invoke(ctx, method, &codec.Frame{}, &codec.Frame{}, grpc.ForceCodecV2(codec.Raw))
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.LogTail(40))
	}
	return nil
}

// inFrontOf starts a criproxy in front of sockets, for one test, and waits until all of them answer.
func inFrontOf(t testing.TB, sockets ...string) *proxy.Proxy {
	t.Helper()
	p := testbed.NewProxy(t, backends(sockets...))
	require.NoError(t, waitForAll(t.Context(), p))
	return p
}

// connect is the value of -connect for sockets.
func connect(sockets ...string) string {
	return strings.Join(sockets, ","+second+":")
}

// folder returns a folder for sockets, whose paths must be short.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "int")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}
