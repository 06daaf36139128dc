package server

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// hasted is a node whose calls have no time of their own after a handover or a reload, on either data path.
func hasted(t *testing.T, test func(t *testing.T, n *node)) {
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, func(c *config.Config) { c.DataPath = path })
			n.stop()
			n.machine.Patience = time.Nanosecond
			n.start()
			n.isUp(1)
			test(t, n)
		})
	}
}

// isLong asserts that calls are the one of p, which has an hour.
func isLong(t *testing.T, p *pod, all []admin.LongCall) {
	t.Helper()
	require.Len(t, all, 1)
	assert.Equal(t, "/runtime.v1.RuntimeService/ExecSync", all[0].Method)
	assert.Equal(t, p.containers[0], all[0].ID)
	assert.Equal(t, time.Hour, all[0].Until.Sub(all[0].Since).Round(time.Minute))
	assert.Contains(t, all[0].String(), "/runtime.v1.RuntimeService/ExecSync of "+p.containers[0]+" by server.test")
}

func TestAReloadEndsNoCallBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	hasted(t, func(t *testing.T, n *node) {
		p := n.run(1, "db", 1)
		begin, thaw := n.under(1)
		ctx, cancel := context.WithTimeout(n.Context(), time.Hour)
		defer cancel()
		done := begin(ctx, p)
		n.onlyThePrimary()
		for range 20 { // if nothing waited for the call, it would have been cut off by then
			_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
			testkit.AssertCode(t, codes.NotFound, err)
		}
		isLong(t, p, n.proxy.Report(n.ctx()).StaysFor)
		assert.NotEmpty(t, testkit.LogLines("Runtimes as they were before the reload stay", "ExecSync of "+p.containers[0]+" by "))
		thaw()
		assert.NoError(t, <-done)
		testkit.Eventually(t, "nothing stays", func() bool { return len(n.proxy.staysFor()) == 0 })
	})
}

func TestAReloadBoundsCallsWithoutADeadline(t *testing.T) {
	t.Parallel()
	hasted(t, func(t *testing.T, n *node) {
		p := n.run(1, "db", 1)
		begin, _ := n.under(1)
		done := begin(n.Context(), p)
		n.onlyThePrimary()
		select {
		case err := <-done:
			assert.Error(t, err)
		case <-time.After(testkit.Patience):
			require.Fail(t, "the runtime stays for ever")
		}
	})
}

func TestAHandoverEndsNoCallBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	hasted(t, func(t *testing.T, n *node) {
		p := n.run(1, "db", 1)
		begin, thaw := n.under(1)
		ctx, cancel := context.WithTimeout(n.Context(), time.Hour)
		defer cancel()
		done := begin(ctx, p)
		after := *n.cfg
		after.Listen += "2"
		l, err := net.Listen("unix", after.Listen)
		require.NoError(t, err)
		var next *Proxy
		ended := make(chan error, 1)
		life, end := context.WithCancel(context.Background())
		n.proxy.machine.Succeed = func(_ context.Context, caches net.Conn) error {
			predecessor, err := ReadPredecessor(caches)
			if err != nil {
				return err
			}
			if next, err = New(&after, Options{Predecessor: predecessor}); err != nil {
				return err
			}
			next.UseListener(l)
			go func() { ended <- next.Run(life) }()
			<-next.Serving()
			return nil
		}
		require.NoError(t, n.proxy.HandOver(t.Context()))
		defer func() { end(); assert.NoError(t, <-ended) }()
		testkit.Eventually(t, "its time is over", func() bool {
			return len(testkit.LogLines("This process stays for calls whose clients wait longer", "ExecSync of "+p.containers[0]+" by ")) > 0
		})
		testkit.Eventually(t, "the new process knows", func() bool { return len(next.staysFor()) > 0 })
		isLong(t, p, next.Report(n.ctx()).StaysFor)
		isLong(t, p, next.staysFor())
		thaw()
		assert.NoError(t, <-done)
		testkit.Eventually(t, "nothing stays", func() bool { return len(next.staysFor()) == 0 })
	})
}
