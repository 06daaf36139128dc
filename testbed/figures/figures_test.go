package figures

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/markdown"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Without naming the kubelet, for it is soon done and need not wait for the tests that are about outages.
func TestMain(m *testing.M) { testbed.Main(m) }

var report = flag.String("report", "", "write what there is into `FILE`, docs/conformance.md")

const two = "two.test"

// A setting is how a kubelet is told to get its figures.
type setting struct {
	title    string
	cadvisor func(*proxy.Proxy, *runtimes.Containerd) string // what is at the path where its cAdvisor asks
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

// A figure is one that a kubelet may have of a pod.
type figure struct{ page, name string }

// ofContainers are the metrics that are the container's; the others are the pod's as a whole.
var ofContainers = []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}

// figures are all that are looked for. Those of pages of metrics are names of metrics.
var figures = []figure{
	{"/stats/summary", "cpu"},
	{"/stats/summary", "memory"},
	network,
	{"/stats/summary", "rootfs"},
	{"/metrics/resource", "container_cpu_usage_seconds_total"},
	{"/metrics/resource", "pod_memory_working_set_bytes"},
	{"/metrics/cadvisor", "container_cpu_usage_seconds_total"},
	{"/metrics/cadvisor", "container_memory_working_set_bytes"},
	{"/metrics/cadvisor", "container_network_receive_bytes_total"},
}

// missing are the figures of the second runtime's pods that a kubelet has not, by ids and setting. cAdvisor knows pods by
// their cgroups, which bear the runtime's own ids, and kubelet looks for the network of a pod by the id that it has itself.
var missing = map[string][]figure{
	"prefix " + byDefault:  {network, {"/metrics/cadvisor", "container_cpu_usage_seconds_total"}, {"/metrics/cadvisor", "container_memory_working_set_bytes"}, {"/metrics/cadvisor", "container_network_receive_bytes_total"}},
	"native " + byDefault:  {network, {"/metrics/cadvisor", "container_cpu_usage_seconds_total"}, {"/metrics/cadvisor", "container_memory_working_set_bytes"}, {"/metrics/cadvisor", "container_network_receive_bytes_total"}},
	"prefix " + byCriproxy: {network},
}

var network = figure{"/stats/summary", "network"}

// A kubelet has the figures of the pods of both runtimes, in each setting and with either kind of ids, but for those that
// this table calls missing.
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
				var now []figure
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

// lacks returns the figures that a kubelet does not have of a pod.
func lacks(t *testing.T, k *kubelet.Kubelet, name string) []figure {
	t.Helper()
	pages := map[string]string{}
	for _, f := range figures {
		if pages[f.page] == "" {
			body, err := k.Page(t.Context(), f.page)
			if err != nil {
				return figures // it has no view of its pods yet
			}
			pages[f.page] = string(body)
		}
	}
	var summary struct {
		Pods []struct {
			PodRef     struct{ Name string }
			CPU        *struct{ UsageCoreNanoSeconds *uint64 }
			Memory     *struct{ WorkingSetBytes *uint64 }
			Network    *struct{ RxBytes *uint64 }
			Containers []struct {
				RootFS *struct{ UsedBytes *uint64 }
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(pages["/stats/summary"]), &summary))
	has := map[string]bool{}
	for _, pod := range summary.Pods {
		if !strings.HasPrefix(pod.PodRef.Name, name+"-") {
			continue
		}
		has["cpu"] = pod.CPU != nil && pod.CPU.UsageCoreNanoSeconds != nil
		has["memory"] = pod.Memory != nil && pod.Memory.WorkingSetBytes != nil
		has["network"] = pod.Network != nil && pod.Network.RxBytes != nil
		has["rootfs"] = len(pod.Containers) == 1 && pod.Containers[0].RootFS != nil && pod.Containers[0].RootFS.UsedBytes != nil
	}
	var absent []figure
	for _, f := range figures {
		there := has[f.name]
		if f.page != "/stats/summary" {
			there = false
			for line := range strings.Lines(pages[f.page]) {
				ours := strings.HasPrefix(line, f.name+"{") && strings.Contains(line, fmt.Sprintf(`pod="%s-%s"`, name, k.NodeName))
				there = there || ours && (strings.Contains(line, `container="app"`) || !slices.Contains(ofContainers, f.name))
			}
		}
		if !there {
			absent = append(absent, f)
		}
	}
	return absent
}

// listed names figures, by page.
func listed(all []figure) string {
	if len(all) == 0 {
		return "none"
	}
	var text []string
	for _, f := range all {
		text = append(text, fmt.Sprintf("`%s` in %s", f.name, f.page))
	}
	return strings.Join(text, ", ")
}

// The table stands between these lines.
const (
	tableBegin = "<!-- figures: made by make conformance -->\n"
	tableEnd   = "<!-- figures: to here -->\n"
)
