package figures_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/figures"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Without naming the kubelet: this package is fast, and need not wait for the tests of outages.
func TestMain(m *testing.M) { testbed.Main(m) }

var report = flag.String("report", "", "write what there is into `FILE`, docs/evidence/conformance.md")

const two = "two.test"

// A setting is a way to configure where a kubelet gets its figures.
type setting struct {
	title    string
	cadvisor func(*proxy.Proxy, *runtimes.Containerd) string // socket at the path that its cAdvisor uses
	yaml     string
}

const (
	byDefault  = "cAdvisor asks the primary, kubelet's default"
	byCriproxy = "cAdvisor asks criproxy"
)

var settings = []setting{
	{byDefault, func(_ *proxy.Proxy, one *runtimes.Containerd) string { return one.Socket() }, ""},
	{byCriproxy, func(p *proxy.Proxy, _ *runtimes.Containerd) string { return p.Socket() }, ""},
	{"PodAndContainerStatsFromCRI", func(_ *proxy.Proxy, one *runtimes.Containerd) string { return one.Socket() }, "featureGates: {PodAndContainerStatsFromCRI: true}\n"},
}

// missing are the figures that a kubelet lacks of the second runtime's pods, by ids and setting. cAdvisor identifies pods
// by their cgroups, which contain the runtime's own ids, and kubelet looks up the network of a pod by the front id.
var missing = map[string][]figures.Figure{
	"prefix " + byDefault:  ofCAdvisor,
	"native " + byDefault:  ofCAdvisor,
	"prefix " + byCriproxy: {network},
}

var network = figures.Figure{Page: figures.Summary, Name: "network"}

// ofCAdvisor are the figures that cAdvisor has only of pods that it can identify.
var ofCAdvisor = []figures.Figure{
	network,
	{Page: figures.CAdvisor, Name: "container_cpu_usage_seconds_total"},
	{Page: figures.CAdvisor, Name: "container_memory_working_set_bytes"},
	{Page: figures.CAdvisor, Name: "container_network_receive_bytes_total"},
}

// A kubelet has the figures of the pods of both runtimes, in each setting and with either kind of ids, except those in
// missing.
func TestAKubeletHasTheFiguresOfBothRuntimes(t *testing.T) {
	testbed.Require(t, build.Kubelet)
	reg := testbed.NewRegistry(t)
	one := testbed.NewContainerd(t, reg, runtimes.Config{Name: "one"})
	other := testbed.NewContainerd(t, reg, runtimes.Config{Name: "two"})
	table := "| | ids | figures that are missing of the second runtime's pods |\n| --- | --- | --- |\n"
	for _, ids := range []string{"prefix", "native"} {
		p := testbed.NewProxy(t, fmt.Sprintf("ids: %s\nbackends:\n- address: %s\n- {name: %s, address: %s}\n", ids, one.Socket(), two, other.Socket()))
		for _, s := range settings {
			t.Run(ids+" "+s.title, func(t *testing.T) {
				k := testbed.NewKubelet(t, kubelet.Config{Endpoint: p.Endpoint(), ExtraYAML: s.yaml, Flags: []string{"--containerd=" + s.cadvisor(p, one)}})
				for name, target := range map[string]string{"on-one": "", "on-two": two} {
					pod := kubelet.StaticPod(name, reg.Image("testbed/app:1"), "tick")
					if target != "" {
						pod.Annotations["kubernetes.io/target-runtime"] = target
					}
					require.NoError(t, k.AddManifest(pod))
				}
				for _, name := range []string{"on-one", "on-two"} {
					_, err := k.WaitRunning(t.Context(), name)
					require.NoError(t, err)
				}
				expected := missing[ids+" "+s.title]
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				var now []figures.Figure
				assert.NoError(t, host.Await(ctx, "the figures of both pods", func() error {
					if absent := lacks(t, k, "on-one"); len(absent) > 0 {
						return fmt.Errorf("of the primary's pod there is no %v", absent)
					}
					now = lacks(t, k, "on-two")
					for _, f := range now {
						if !slices.Contains(expected, f) {
							return fmt.Errorf("of the second runtime's pod there is no %v", now)
						}
					}
					return nil
				}))
				assert.Equal(t, expected, now, "a figure that was missing is there now: update the table and the documentation")
				table += fmt.Sprintf("| %s | %s | %s |\n", s.title, ids, listed(now))
			})
		}
	}
	t.Logf("\n%s", table)
	if *report != "" {
		require.NoError(t, markdown.Between(*report, tableBegin, tableEnd, table))
	}
}

// lacks returns the figures that a kubelet lacks of a pod.
func lacks(t *testing.T, k *kubelet.Kubelet, name string) []figures.Figure {
	t.Helper()
	missing, err := figures.Missing(func(path string) (string, error) {
		body, err := k.Page(t.Context(), path)
		return string(body), err
	}, name+"-"+k.NodeName)
	if err != nil {
		return figures.All // the kubelet has no view of its pods yet
	}
	return missing
}

// listed names figures, by page.
func listed(all []figures.Figure) string {
	if len(all) == 0 {
		return "none"
	}
	var text []string
	for _, f := range all {
		text = append(text, f.String())
	}
	return strings.Join(text, ", ")
}

// The table is between these lines.
const (
	tableBegin = "<!-- figures: made by make conformance -->\n"
	tableEnd   = "<!-- figures: to here -->\n"
)
