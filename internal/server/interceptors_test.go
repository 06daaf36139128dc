package server

import (
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestARefusedCallCountsNowhere(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) {
		c.Listeners = []config.Listener{{Path: c.Listen, MaxCalls: 1, Access: []config.AccessRule{{Methods: []string{"ExecSync"}}}}}
	})
	begin, thaw := n.under(0)
	one := begin(n.ctx(), &pod{containers: []string{"c"}})
	func() {
		n.proxy.callGroups.mu.Lock() // a call that wants to be counted as under way waits
		defer n.proxy.callGroups.mu.Unlock()
		_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{})
		testkit.AssertCode(t, codes.PermissionDenied, err)
		_, err = n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: "c"})
		testkit.AssertCode(t, codes.ResourceExhausted, err)
	}()
	thaw()
	<-one
}
