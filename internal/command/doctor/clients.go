package doctor

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/observe/why"
)

// clients looks for processes that bypass criproxy and talk to a runtime directly: they use ids without a prefix, and
// criproxy neither asks plugins about their calls nor remembers what they change.
func (e *examination) clients() {
	const about = "clients"
	for _, b := range e.Backends {
		if e.same(b.Address, e.Listen) {
			continue
		}
		inodes, err := e.Connected(e.file(b.Address))
		if err != nil {
			e.add(why.Note, about, "doctor-cannot-see-everything", fmt.Sprintf("cannot list the clients of %s: %v", b.Address, err), "run this as root, on the node itself")
			continue
		}
		owners, all := e.owners(inodes)
		for _, p := range owners {
			process := fmt.Sprintf("%s (process %d)", p.name, p.pid)
			switch {
			case e.Criproxys[p.pid] != nil, named(p.name):
			case p.name == "kubelet" && !e.OtherAPI:
				if e.kubelet != nil && e.same(e.kubelet.Endpoint, b.Address) {
					continue // kubelets has reported this
				}
				cure := "nothing is wrong; cAdvisor's container_* metrics have ids without a prefix"
				switch {
				case e.kubelet != nil && e.kubelet.fromCRI:
					cure = "nothing is wrong; kubelet gets its figures about pods from CRI (PodAndContainerStatsFromCRI)"
				case len(e.Backends) > 1:
					cure = fmt.Sprintf("to get metrics of the pods of all backends, start kubelet with --containerd=%s, or with the feature gate PodAndContainerStatsFromCRI; with the former and ids with a prefix, the network figures in /stats/summary are missing (docs/operations.md)", e.Listen)
				}
				e.add(why.Note, about, "a-program-bypasses-criproxy", fmt.Sprintf("%s is connected to %s of backend %s: this is cAdvisor, which is built into kubelet", process, b.Address, b.Name), cure)
			default:
				e.add(why.Warning, about, "a-program-bypasses-criproxy", fmt.Sprintf("%s bypasses criproxy: it talks to backend %s directly, at %s", process, b.Name, b.Address),
					fmt.Sprintf("make it use unix://%s, or a listener of its own with an access list; programs that only read images or snapshots need no change", e.Listen))
			}
		}
		if !all {
			e.add(why.Note, about, "doctor-cannot-see-everything", fmt.Sprintf("some clients of %s are unknown", b.Address), "run this as root; the clients may be in another container")
		}
	}
}

// crictl looks at the sockets that crictl is configured to use.
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
			e.add(why.Warning, "clients", "a-program-bypasses-criproxy", fmt.Sprintf("crictl speaks to %s (%s in %s), and shows only the pods of that runtime, without prefixes", to, key, path), fmt.Sprintf("set %s: unix://%s", key, e.Listen))
		}
	}
}
