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
