package server

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// troubles are states that a runtime can be in when it gets a name.
func (n *node) trouble(which int, name string) {
	n.Helper()
	switch name {
	case "slow":
		n.runtimes[which].When(slowing())
	case "erring":
		n.runtimes[which].When(testkit.Failing(status.Error(codes.Unknown, "server is not initialized yet")))
	case "killed":
		n.runtimes[which].Kill()
	}
}

// docs/migration.md, "From one containerd to another", step 5.
func TestANamePassesToARuntimeWithItsPods(t *testing.T) {
	t.Parallel()
	for _, trouble := range []string{"none", "slow", "erring", "killed"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", trouble, restart), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, func(c *config.Config) { hasty(c); c.IDs = config.NativeIDs }, machineConfig{}, machineConfig{backend: config.Backend{Name: "new.example"}})
				want := []string{n.run(1, "web", 1).sandbox, n.run(1, "db", 1).sandbox}
				n.known()
				n.trouble(1, trouble)
				last := []config.Backend{{Address: n.cfg.Backends[1].Address}}
				if restart {
					n.stop()
					n.cfg.Backends = last
					require.NoError(t, Check(n.cfg))
					n.start()
				} else {
					n.change(func(c *config.Config) { c.Backends = last })
				}
				for range 10 {
					pods, err := listPods(nil).unary(n)
					if err != nil { // the runtime has not answered since a restart
						assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
						continue
					}
					assert.ElementsMatch(t, want, idsOf(pods))
				}
			})
		}
	}
}

func TestRuntimesThatSwapNamesKeepTheirPods(t *testing.T) {
	t.Parallel()
	for _, trouble := range []string{"none", "slow", "erring", "killed"} {
		t.Run(trouble, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
				n := newNode(t, func(c *config.Config) { hasty(c); mode(c) })
				n.run(0, "web", 1)
				n.run(1, "db", 1)
				n.known()
				n.trouble(1, trouble)
				n.change(func(c *config.Config) {
					a, b := c.Backends[0], c.Backends[1]
					a.Address, b.Address = b.Address, a.Address
					c.Backends = []config.Backend{a, b}
				})
				want := []string{n.runtimes[1].Pods()[0].GetId(), n.front(1, n.runtimes[0].Pods()[0].GetId())}
				for range 10 {
					if pods, err := listPods(nil).unary(n); err == nil {
						assert.ElementsMatch(t, want, idsOf(pods))
					}
				}
			})
		})
	}
}

func TestARuntimeThatIsRenamedKeepsItsPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { hasty(c); c.IDs = config.NativeIDs })
	want := []string{n.run(0, "web", 1).sandbox, n.run(1, "db", 1).sandbox}
	n.known()
	n.runtimes[1].Kill()
	rename := func(name string) {
		n.change(func(c *config.Config) {
			c.Backends = append([]config.Backend{}, c.Backends...)
			c.Backends[1].Name = name
		})
	}
	rename("gamma.io")
	rename("delta.io")
	n.lists(want...)
	n.stop()
	n.start()
	n.lists(want...)
}
