package runtimes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/criproxy/criproxy/testbed/host"
)

// writeCNI writes the configuration of the only network of an instance's pods.
func writeCNI(dir string, b host.Bridge) error {
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       b.Name,
		"plugins": []any{map[string]any{
			"type":      "bridge",
			"bridge":    b.Name,
			"isGateway": false, // true would turn on net.ipv4.ip_forward; the bridge already has its address
			"ipMasq":    false, // true would need iptables
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": filepath.Join(dir, "cni", "ipam"),
				"ranges":  []any{[]any{map[string]any{"subnet": b.Subnet.String(), "gateway": b.Addr.String()}}},
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
