package doctor

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// clients looks for processes that talk to a runtime behind criproxy's back: the ids that they
// use have no prefix, no plugin is asked about their calls, and criproxy's memory does not see them.
func (e *examination) clients() {
	const about = "clients"
	for _, b := range e.Backends {
		if e.same(b.Address, e.Listen) {
			continue
		}
		inodes, err := e.Connected(e.file(b.Address))
		if err != nil {
			e.add(Note, about, fmt.Sprintf("the clients of %s cannot be listed: %v", b.Address, err), "run this as root, on the node itself")
			continue
		}
		owners, all := e.owners(inodes)
		for _, p := range owners {
			process := fmt.Sprintf("%s (process %d)", p.name, p.pid)
			switch p.name {
			case "criproxy":
			case "kubelet":
				if e.kubelet != nil && e.same(e.kubelet.Endpoint, b.Address) {
					continue // said already
				}
				cure := "nothing is wrong; container_* metrics of cAdvisor have the ids without prefix"
				switch {
				case e.kubelet != nil && e.kubelet.fromCRI:
					cure = "nothing is wrong; kubelet asks CRI for the figures of pods (PodAndContainerStatsFromCRI)"
				case len(e.Backends) > 1:
					cure = fmt.Sprintf("for metrics of the pods of all backends start it with --containerd=%s, or with the feature gate PodAndContainerStatsFromCRI; the first leaves the network in /stats/summary missing where ids have a prefix (docs/operations.md)", e.Listen)
				}
				e.add(Note, about, fmt.Sprintf("%s is connected to %s of backend %s: that is cAdvisor, which is built into it", process, b.Address, b.Name), cure)
			default:
				e.add(Warning, about, fmt.Sprintf("%s talks to backend %s behind criproxy's back, at %s", process, b.Name, b.Address),
					fmt.Sprintf("let it use unix://%s, or a listener of its own with an access list; what only reads images or snapshots may stay", e.Listen))
			}
		}
		if !all {
			e.add(Note, about, fmt.Sprintf("some clients of %s cannot be named", b.Address), "run this as root; they may be in another container")
		}
	}
	e.crictl()
}

// crictl looks at what people's own tool speaks to.
func (e *examination) crictl() {
	var file struct {
		Runtime string `yaml:"runtime-endpoint"`
		Image   string `yaml:"image-endpoint"`
	}
	const path = "/etc/crictl.yaml"
	data, err := os.ReadFile(e.file(path))
	if err != nil || yaml.Unmarshal(data, &file) != nil {
		return
	}
	for key, endpoint := range map[string]string{"runtime-endpoint": file.Runtime, "image-endpoint": file.Image} {
		if to := strings.TrimPrefix(endpoint, "unix://"); to != "" && !e.same(to, e.Listen) {
			e.add(Warning, "clients", fmt.Sprintf("crictl speaks to %s (%s in %s), and shows only what is there, without prefixes", to, key, path), fmt.Sprintf("set %s: unix://%s", key, e.Listen))
		}
	}
}
