// Package figures checks which figures a kubelet has of a pod, on each of its pages: CPU, memory, network and file system.
package figures

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A Figure is a figure that a kubelet may have of a pod.
type Figure struct{ Page, Name string }

func (f Figure) String() string { return fmt.Sprintf("`%s` in %s", f.Name, f.Page) }

// The pages of a kubelet.
const (
	Summary  = "/stats/summary"
	Resource = "/metrics/resource"
	CAdvisor = "/metrics/cadvisor"
)

// All are the expected figures. On pages of metrics they have the names of metrics.
var All = []Figure{
	{Summary, "cpu"},
	{Summary, "memory"},
	{Summary, "network"},
	{Summary, "rootfs"},
	{Resource, "container_cpu_usage_seconds_total"},
	{Resource, "pod_memory_working_set_bytes"},
	{CAdvisor, "container_cpu_usage_seconds_total"},
	{CAdvisor, "container_memory_working_set_bytes"},
	{CAdvisor, "container_network_receive_bytes_total"},
}

// ofContainers are the metrics of containers; the others belong to the pod as a whole.
var ofContainers = []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}

// Missing returns the figures that a kubelet lacks of a pod with one container, app. It fails if it cannot read a page.
func Missing(page func(path string) (string, error), pod string) ([]Figure, error) {
	pages := map[string]string{}
	for _, f := range All {
		if _, ok := pages[f.Page]; ok {
			continue
		}
		text, err := page(f.Page)
		if err != nil {
			return nil, err
		}
		pages[f.Page] = text
	}
	inSummary, err := summary(pages[Summary], pod)
	if err != nil {
		return nil, err
	}
	var missing []Figure
	for _, f := range All {
		there := inSummary[f.Name]
		if f.Page != Summary {
			there = hasMetric(pages[f.Page], f.Name, pod)
		}
		if !there {
			missing = append(missing, f)
		}
	}
	return missing, nil
}

// summary returns the figures of a pod that are on the page [Summary].
func summary(page, pod string) (has map[string]bool, err error) {
	var all struct {
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
	if err := json.Unmarshal([]byte(page), &all); err != nil {
		return nil, fmt.Errorf("testbed: reading a kubelet's %s: %w", Summary, err)
	}
	has = map[string]bool{}
	for _, p := range all.Pods {
		if p.PodRef.Name != pod {
			continue
		}
		has["cpu"] = p.CPU != nil && p.CPU.UsageCoreNanoSeconds != nil
		has["memory"] = p.Memory != nil && p.Memory.WorkingSetBytes != nil
		has["network"] = p.Network != nil && p.Network.RxBytes != nil
		has["rootfs"] = len(p.Containers) == 1 && p.Containers[0].RootFS != nil && p.Containers[0].RootFS.UsedBytes != nil
	}
	return has, nil
}

func hasMetric(page, name, pod string) bool {
	for line := range strings.Lines(page) {
		ours := strings.HasPrefix(line, name+"{") && strings.Contains(line, fmt.Sprintf("pod=%q", pod))
		if ours && (strings.Contains(line, `container="app"`) || !slices.Contains(ofContainers, name)) {
			return true
		}
	}
	return false
}
