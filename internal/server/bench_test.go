package server

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/hookapi"
	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// BenchmarkHooks measures RunPodSandbox through the whole proxy, from a client to a runtime in memory that
// answers at once: with hooks turned off, with no plugin, and with one plugin that changes an annotation. It also
// measures a call of that plugin without a proxy. They take turns, so that a busy machine is busy for all of them.
// The results are medians.
func BenchmarkHooks(b *testing.B) {
	off := newNode(b, func(c *config.Config) { c.Hooks = "none" }, machineConfig{})
	none := newNode(b, nil, machineConfig{})
	one := newNode(b, nil, machineConfig{})
	one.plug(plugin.Plugin{Name: "tier", Fail: true, PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
		a := plugin.EchoPod(p)
		a.Annotations["tier"] = "low"
		return a, nil
	}})
	cc, err := grpc.NewClient("unix:"+filepath.Join(filepath.Dir(one.cfg.Listen), "tier.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer cc.Close() // the error would change nothing

	i := 0
	run := func(n *node) func() error {
		return func() error {
			config := testkit.PodConfig("web")
			config.Metadata.Uid = fmt.Sprint("uid-", i)
			_, err := n.RunPodSandbox(b.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
			return err
		}
	}
	ask := func() error {
		config := testkit.PodConfig("web")
		return cc.Invoke(b.Context(), "/runtime.v1alpha1.RuntimeHookService/PreRunPodSandboxHook",
			&hookapi.PodSandboxHookRequest{Labels: config.Labels, Annotations: config.Annotations}, &hookapi.PodSandboxHookResponse{})
	}
	calls := []func() error{run(off), run(none), run(one), ask}
	took := make([][]time.Duration, len(calls))
	for b.Loop() {
		i++
		for j := range calls { // in every order, because the first one finds caches cold
			j = (i + j) % len(calls)
			began := time.Now()
			require.NoError(b, calls[j]())
			took[j] = append(took[j], time.Since(began))
		}
	}
	var median [4]float64
	for j := range took {
		slices.Sort(took[j])
		median[j] = float64(took[j][len(took[j])/2])
	}
	b.ReportMetric(0, "ns/op") // the mean of all four says nothing
	b.ReportMetric(median[0]/1000, "µs/off")
	b.ReportMetric(median[1]/1000, "µs/no-plugin")
	b.ReportMetric(100*(median[1]-median[0])/median[0], "%more/no-plugin")
	b.ReportMetric(median[2]/1000, "µs/one-plugin")
	b.ReportMetric(median[3]/1000, "µs/plugin-alone")
	b.ReportMetric((median[2]-median[1])/median[3], "roundtrips/one-plugin")
}
