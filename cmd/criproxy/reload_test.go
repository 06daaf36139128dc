package main

import (
	"path/filepath"
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

// A reload that came while the process started, because the file had just been changed, ended it.
func TestAProxyThatDoesNotServeYetRefusesToChange(t *testing.T) {
	dir := socketDir(t)
	with := func(name string) *Config {
		cfg := healthConfig(t, dir, BackendConfig{Address: filepath.Join(dir, "0.sock")}, BackendConfig{Name: name, Address: filepath.Join(dir, "1.sock")})
		require.NoError(t, cfg.check())
		return cfg
	}
	p, err := newProxy(with("beta.io"))
	require.NoError(t, err)
	require.NoError(t, p.openAll(nil))
	assert.ErrorIs(t, p.reload(with("gamma.io")), errNotServes)
	assert.ErrorIs(t, p.handOver(t.Context()), errNotServes)
	assert.Equal(t, "beta.io", p.backends()[1].String(), "nothing has changed")
	serves := make(chan struct{})
	p.onServing = func() { close(serves) }
	runUntilEnd(t, p)
	<-serves
	require.NoError(t, p.reload(with("gamma.io")))
	assert.Equal(t, "gamma.io", p.backends()[1].String())
}
