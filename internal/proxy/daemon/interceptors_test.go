package daemon

import (
	"os"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/settings/config"
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
		n.proxy.epochs.mu.Lock() // a call that wants to be counted as under way waits
		defer n.proxy.epochs.mu.Unlock()
		_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{})
		testkit.AssertCode(t, codes.PermissionDenied, err)
		_, err = n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: "c"})
		testkit.AssertCode(t, codes.ResourceExhausted, err)
	}()
	thaw()
	<-one
}

// docs/architecture.md names the interceptors in the order in which a call passes them.
func TestArchitectureHasTheOrderOfInterceptors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../docs/architecture.md")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile("`([a-z]+\\.(?:[A-Za-z]+\\.)?[Ii]ntercept[A-Za-z]*)`").FindAllStringSubmatch(string(data), -1) {
		documented = append(documented, m[1])
	}
	var order []string
	for _, f := range newNode(t, nil).proxy.interceptors() {
		name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() // such as …/limits.(*Memory).Intercept-fm
		name = strings.TrimSuffix(name[strings.LastIndexByte(name, '/')+1:], "-fm")
		order = append(order, strings.NewReplacer("(*", "", ")", "").Replace(name))
	}
	assert.Equal(t, order, documented)
}
