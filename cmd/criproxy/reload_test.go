package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestACallAtARuntimeThatIsTakenAwayEndsAsItWould(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	p := n.run(1, "db", 1)
	begin, thaw := n.under(1)
	done := begin(n.ctx(), p)
	without := *n.cfg
	without.Backends = without.Backends[:1]
	require.NoError(t, n.proxy.reload(&without))
	for range 100 { // by then it would be too late, were nobody to wait
		_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
		assertCode(t, codes.NotFound, err)
	}
	thaw()
	assert.NoError(t, <-done)
}
