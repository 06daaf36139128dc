package server

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A runtime that sends GOAWAY again and again makes no call fail.
func TestNoCallFailsInAStormOfGOAWAY(t *testing.T) {
	t.Parallel()
	w := &testkit.Wire{}
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}, wire: w})
	n.isUp(1)
	p := n.run(1, "db", 1)
	before := w.Goaways.Load()
	w.Storm.Store(true)
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 25 {
				if _, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{}); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	for range 10 {
		_, err := n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: p.containers[0]})
		assert.NoError(t, err)
	}
	calls.Wait()
	assert.Greater(t, w.Goaways.Load(), before+10)
	n.isUp(1)
}

func TestPeersThatReadAFewBytesAtATimeGetAll(t *testing.T) {
	t.Parallel()
	runtimes, clients := &testkit.Wire{}, &testkit.Wire{}
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}, wire: runtimes})
	n.isUp(1)
	p := n.run(1, "db", 1)
	clients.Slow.Store(true)
	runtimes.Slow.Store(true)
	_ = n.cc.Close() // its client was not slow
	n.connect(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", n.cfg.Listen)
		return &testkit.WireConn{Conn: conn, Wire: clients}, err
	}))
	long := strings.Repeat("x", 64<<10)
	_, err := n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: p.containers[0], Annotations: map[string]string{"long": long}})
	require.NoError(t, err)
	got, err := n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: p.containers[0], Cmd: []string{"echo", long}})
	require.NoError(t, err)
	assert.Len(t, got.GetStdout(), len(long)+1)
}
