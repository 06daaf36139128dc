package testbed

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// cniCache is where the CNI library inside containerd remembers what it set up. It cannot be told
// another place, so its files are recognised by what they contain.
const cniCache = "/var/lib/cni/results"

// writeCNI writes the one network that pods of an instance are put on.
func writeCNI(dir string, b bridge) error {
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       b.name,
		"plugins": []any{map[string]any{
			"type":      "bridge",
			"bridge":    b.name,
			"isGateway": false, // true would switch on net.ipv4.ip_forward; the bridge has its address already
			"ipMasq":    false, // true would need iptables
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": filepath.Join(dir, "cni", "ipam"),
				"ranges":  []any{[]any{map[string]any{"subnet": b.subnet.String(), "gateway": b.addr.String()}}},
			},
		}},
	}
	data, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "cni", "net.d"), 0o755); err != nil {
		return fmt.Errorf("testbed: making the CNI folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cni", "net.d", "10-testbed.conflist"), data, 0o644); err != nil {
		return fmt.Errorf("testbed: writing the CNI network: %w", err)
	}
	return nil
}
