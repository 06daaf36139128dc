package cluster_test

import (
	"context"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/junit"
	"github.com/criproxy/criproxy/testbed/internal/plane"
)

var (
	conformance = flag.Bool("conformance", false, "run Kubernetes' own specs of nodes, which takes long")
	specs       = flag.String("specs", ".", "with -conformance, the specs whose names match this `REGEXP`")
	logs        = flag.String("logs", os.TempDir(), "the `FOLDER` for what the suite says")
	report      = flag.String("report", "", "write what came of -conformance into `FILE`, docs/evidence/conformance.md")
)

// labels leaves out the specs that need their own machine.
const labels = "NodeConformance && !Serial && !Slow && !Disruptive && !Flaky"

// Kubernetes' own conformance specs that pass on a node whose kubelet uses containerd also pass
// through criproxy, on one runtime, and with all pods on the second.
func TestKubernetesOwnSpecsPassAsTheyDoDirectly(t *testing.T) {
	if !*conformance {
		t.Skip("left out: only with -conformance")
	}
	compared := junit.Comparison{Columns: []string{"kubelet speaks to"}}
	var direct junit.Outcomes
	for _, way := range []struct {
		title string
		variant
	}{
		{"containerd itself", variant{ids: "native", direct: true}},
		{"criproxy, pods on the primary, prefixed ids", variant{ids: "prefix"}},
		{"criproxy, all pods on the second, prefixed ids", variant{ids: "prefix", yaml: "newPodsTo: " + two + "\n"}},
		{"criproxy, all pods on the second, native ids", variant{ids: "native", yaml: "newPodsTo: " + two + "\n"}},
	} {
		t.Run(way.title, func(t *testing.T) {
			c := newCluster(t, way.variant)
			began := time.Now()
			is := c.suite(t, *specs)
			for range 2 { // some specs require two events within half a second
				again := direct.PassedAndNot(is)
				if len(again) == 0 {
					break
				}
				t.Logf("again, by themselves: %q", again)
				tried := c.suite(t, junit.Focus(again))
				require.Len(t, tried, len(again), "the specs that were in focus")
				maps.Copy(is, tried)
			}
			compared.Add(is, direct, way.title)
			if direct == nil {
				direct = is
			}
			for _, spec := range direct.PassedAndNot(is) {
				t.Errorf("%s: %s: %s", spec, is[spec], is[spec].Why)
			}
			assert.Positive(t, is.Count(junit.Passed))
			t.Logf("%d specs in %s\n%s%s", len(is), time.Since(began).Round(time.Second), compared.Table(), compared.Lists())
			if *report != "" {
				require.NoError(t, markdown.Between(*report, tableBegin, tableEnd, compared.Table()+compared.Lists()))
			}
		})
	}
}

// suite runs the specs whose names match a regular expression, on the node of a cluster.
func (c *cluster) suite(t *testing.T, focus string) junit.Outcomes {
	t.Helper()
	program := testbed.Require(t, build.E2ENode).E2ENode
	require.NoError(t, c.registry.PushE2ENode(c.Bin))
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "ginkgo"), "-procs=24", "-no-color", "-timeout=1h", "-focus="+focus, "-label-filter="+labels,
		"-output-dir="+dir, "-junit-report=junit.xml", program, "--",
		"--start-services=false", "--stop-services=false", "--prepull-images=false", "--host="+c.Server, "--bearer-token="+plane.Token,
		"--node-name="+c.node, "--container-runtime-endpoint="+c.endpoint, "--report-dir="+dir)
	cmd.Dir = dir
	log, err := os.OpenFile(filepath.Join(*logs, filepath.Base(t.Name())+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	require.NoError(t, err)
	defer log.Close()
	t.Logf("the suite writes to %s", log.Name())
	cmd.Stdout, cmd.Stderr = log, log
	runErr := cmd.Run() // an error if a spec fails, which the report names
	o, err := junit.Read(filepath.Join(dir, "junit.xml"))
	require.NoError(t, err, "the suite has left no report: %v; see %s", runErr, log.Name())
	return o
}

// The table is between these lines.
const (
	tableBegin = "<!-- specs of nodes: made by make nightly -->\n"
	tableEnd   = "<!-- specs of nodes: to here -->\n"
)
