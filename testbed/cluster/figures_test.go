package cluster_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/figures"
)

// tryFigures asks the node, through the API server, for what kubectl top and autoscalers are made of. kubelet's cAdvisor asks
// criproxy here; testbed/figures has the other settings.
func tryFigures(t *testing.T, c *cluster, ids string) {
	page := func(path string) (string, error) {
		out, err := c.Command(t.Context(), "get", "--raw", "/api/v1/nodes/"+c.node+"/proxy"+path).Output()
		return string(out), err
	}
	for pod := range everywhere {
		require.NoError(t, host.Await(t.Context(), "the figures of "+pod, func() error {
			missing, err := figures.Missing(page, pod)
			if err != nil {
				return err
			}
			if ids == "prefix" && pod == "on-two" { // docs/evidence/conformance.md
				missing = slices.DeleteFunc(missing, func(f figures.Figure) bool { return f.Page == figures.Summary && f.Name == "network" })
			}
			if len(missing) > 0 {
				return fmt.Errorf("there is no %v", missing)
			}
			return nil
		}))
	}
}
