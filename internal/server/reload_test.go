package server

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestACallAtARuntimeThatIsTakenAwayEndsAsItWould(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	p := n.run(1, "db", 1)
	begin, thaw := n.under(1)
	done := begin(n.Context(), p) // without a deadline: the calls below take a while on a busy machine
	n.onlyThePrimary()
	for range 20 { // if nothing waited for the call, it would have been cut off by then
		_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
		testkit.AssertCode(t, codes.NotFound, err)
	}
	thaw()
	assert.NoError(t, <-done)
}

func TestAListUnderWayKeepsTheRuntimeThatIsTakenAway(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	ours, theirs := n.run(0, "ours", 1), n.run(1, "theirs", 1)
	for name, list := range map[string]func() (int, error){
		"in one message": func() (int, error) {
			r, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
			return len(r.GetContainers()), err
		},
		"as a stream": func() (int, error) {
			cs, err := n.StreamContainers(n.ctx(), &runtimeapi.StreamContainersRequest{})
			all, err := collect(cs, err, func(r *runtimeapi.StreamContainersResponse) []*runtimeapi.Container { return r.GetContainers() })
			return len(all), err
		},
	} {
		come, ice := make(chan struct{}, 100), make(chan struct{})
		n.runtimes[1].When(testkit.On(func(context.Context, string, any) error {
			come <- struct{}{}
			<-ice
			return nil
		}, "ListContainers", "StreamContainers"))
		type result struct {
			n   int
			err error
		}
		done := make(chan result, 1)
		go func() {
			n, err := list()
			done <- result{n, err}
		}()
		testkit.Eventually(t, "the list is under way", func() bool { return n.proxy.sockets()[0].Limits.Calls.Load() == 1 })
		<-come
		n.onlyThePrimary()
		after, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
		require.NoError(t, err)
		assert.Len(t, after.GetContainers(), 1, "%s: that of the runtime that is left, %s", name, ours.containers[0])
		close(ice)
		r := <-done
		assert.NoError(t, r.err, name)
		assert.Equal(t, 2, r.n, "%s: with that of the runtime that is taken away, %s", name, theirs.containers[0])
		n.runtimes[1].When(nil)
		require.NoError(t, reload(n.proxy, n.cfg))
		n.isUp(1)
	}
}

// A reload that came while the process started, because the file had just changed, used to end the process.
func TestAProxyThatDoesNotServeYetRefusesToChange(t *testing.T) {
	dir := testkit.SocketDir(t)
	with := func(name string) *config.Config {
		cfg := healthConfig(t, dir, config.Backend{Address: filepath.Join(dir, "0.sock")}, config.Backend{Name: name, Address: filepath.Join(dir, "1.sock")})
		require.NoError(t, Check(cfg))
		return cfg
	}
	p, err := New(with("beta.io"), Options{})
	require.NoError(t, err)
	require.NoError(t, p.Open(nil))
	assert.ErrorIs(t, reload(p, with("gamma.io")), errNotServing)
	assert.ErrorIs(t, p.HandOver(t.Context()), errNotServing)
	assert.Equal(t, "beta.io", p.backends()[1].String(), "nothing has changed")
	runUntilEnd(t, p)
	<-p.Serving()
	require.NoError(t, reload(p, with("gamma.io")))
	assert.Equal(t, "gamma.io", p.backends()[1].String())
}

// onlyThePrimary reloads the configuration without the other runtimes.
func (n *node) onlyThePrimary() {
	n.Helper()
	without := *n.cfg
	without.Backends = without.Backends[:1]
	require.NoError(n, reload(n.proxy, &without))
}

// reload applies another configuration.
func reload(p *Proxy, cfg *config.Config) error {
	_, err := p.Reload(cfg)
	return err
}

// So does a process that begins: its configuration may be another one than that of the process before it.
func TestAProcessThatBeginsSaysWhichAddressIsNew(t *testing.T) {
	n := newNode(t, nil)
	assert.Empty(t, changed(t, n.proxy, capture.Serving).Why, "the first ever")
	evidence, err := json.Marshal(n.proxy.evidence())
	require.NoError(t, err)

	n.stop()
	was := n.cfg.Backends[1].Address
	n.cfg.Backends[1].Address += ".new"
	n.start()
	said := changed(t, n.proxy, capture.Serving)
	assert.Equal(t, "beta.io is now at "+was+".new, before at "+was, said.Why)
	assert.Equal(t, map[string]string{"primary": n.cfg.Backends[0].Address, "beta.io": was + ".new"}, said.Addresses)
	n.stop()
	n.start()
	assert.Empty(t, changed(t, n.proxy, capture.Serving).Why, "it is where it was")

	n.stop()
	ours, theirs := net.Pipe()
	defer ours.Close()
	successor, err := New(n.cfg, Options{Predecessor: &Predecessor{conn: theirs, all: map[string][]byte{evidenceKey: evidence}}})
	require.NoError(t, err)
	defer successor.Close()
	successor.begun()
	assert.Equal(t, said.Why, changed(t, successor, capture.HandedOver).Why)
}

func TestAConnectionOfAClosedSocketEndsWhenItIsIdle(t *testing.T) {
	t.Parallel()
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, func(c *config.Config) { c.DataPath = path })
			p := n.run(0, "web", 1)
			more, less := *n.cfg, *n.cfg
			more.Listeners = []config.Listener{{Path: filepath.Join(testkit.SocketDir(t), "more.sock")}}
			<-n.proxy.Serving()
			require.NoError(t, reload(n.proxy, &more))
			closed := n.proxy.sockets()[1]
			connections := func() (all int) {
				for _, n := range n.proxy.clients()[closed] {
					all += n
				}
				return all
			}
			_, err := runtimeapi.NewRuntimeServiceClient(testkit.Dialed(t, closed.Path)).Version(n.ctx(), &runtimeapi.VersionRequest{})
			require.NoError(t, err)
			n.RuntimeServiceClient = runtimeapi.NewRuntimeServiceClient(testkit.Dialed(t, closed.Path))
			begin, thaw := n.under(0)
			done := begin(n.ctx(), p)
			require.Equal(t, 2, connections())
			require.NoError(t, reload(n.proxy, &less))
			testkit.Eventually(t, "the idle connection ends", func() bool { return connections() == 1 })
			thaw()
			require.NoError(t, <-done)
			testkit.Eventually(t, "the other one ends after its call", func() bool { return connections() == 0 })
		})
	}
}

// With another spelling of its own socket, criproxy refused the reload: the socket was already served, by itself. See
// issue 40.
func TestAReloadMaySpellASocketInAnotherWay(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	<-n.proxy.Serving()
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Dir(n.cfg.Listen), link))
	next := *n.cfg
	next.Listen = filepath.Join(link, filepath.Base(n.cfg.Listen))
	require.NoError(t, reload(n.proxy, &next))
	_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err)
	n.connect()
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err)
}
