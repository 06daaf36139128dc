package kubelet

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/table"
)

// Config configures a kubelet. Binaries and Endpoint are required; all other fields may be zero.
type Config struct {
	// Name tells instances apart in messages and in the name of their cgroup. Empty means "kubelet".
	Name string
	// Dir is the folder for the instance's files. Destroy removes it. Empty means a new one in the temporary
	// folder. Its path must be short, because it holds sockets.
	Dir string
	// Binaries are from build.Get, with [build.Kubelet].
	Binaries build.Binaries
	// Endpoint is the CRI socket: unix:///... A runtime must answer there before Start is called.
	Endpoint string
	// NodeName is the suffix of the name of every pod: web becomes web-NODENAME. Empty means a name that
	// no other instance on this machine has.
	NodeName string
	// Verbosity is the verbosity of its log. Zero means 4, which includes all events.
	Verbosity int
	// ExtraYAML is merged into the configuration file, field by field:
	//
	//	featureGates: {EventedPLEG: true}
	//	crashLoopBackOff: {maxContainerRestartPeriod: 1s}
	ExtraYAML string
	// Kubeconfig is the file for an API server, of which the kubelet becomes a node. Empty means that there is no API
	// server.
	Kubeconfig string
	// Address is the address on which it listens. An API server that proxies to it needs one that is not loopback. Empty
	// means 127.0.0.1.
	Address string
	// Flags are appended to its other flags.
	Flags []string
	// RunCRIO is a folder that the kubelet sees as /run/crio, where its cAdvisor looks for CRI-O's socket, crio.sock. Empty
	// means the machine's own.
	RunCRIO string
	// DropIn is the content of a file in its --config-dir, which overrides the configuration file. Empty means
	// no such file.
	DropIn string
}

// ports are the ports on which a kubelet listens: at its address, except health, which is on 127.0.0.1.
type ports struct{ api, readOnly, health int }

// longestSocket is the longest relative path of a socket in a kubelet's folder.
const longestSocket = "root/pod-resources/kubelet.sock"

// manifestName is the file that marks the folder of a kubelet.
const manifestName = "kubelet.json"

// withDefaults checks c, fills in defaults, and makes the folder.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = "kubelet"
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`).MatchString(c.Name) {
		return c, fmt.Errorf("testbed: kubelet name %q: use letters, digits, dots, dashes and underscores only", c.Name)
	}
	if c.Binaries.Kubelet == "" {
		return c, fmt.Errorf("testbed: starting kubelet %s: Config.Binaries lacks it (call build.Get(ctx, w, build.Kubelet) first)", c.Name)
	}
	if !strings.HasPrefix(c.Endpoint, "unix:///") {
		return c, fmt.Errorf("testbed: starting kubelet %s: endpoint %q: want unix:///PATH of a CRI socket", c.Name, c.Endpoint)
	}
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	if c.Verbosity == 0 {
		c.Verbosity = 4
	}
	var err error
	c.Dir, err = host.NewDir(c.Dir, longestSocket)
	if err != nil {
		return c, fmt.Errorf("testbed: making the folder of kubelet %s: %w", c.Name, err)
	}
	if c.NodeName == "" {
		c.NodeName = fmt.Sprintf("node-%08x", host.Hash(c.Dir))
	}
	return c, nil
}

// sysctls are the values that the kubelet requires, and would otherwise set for the whole machine.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// writeConfig writes the kubelet's configuration.
func (k *Kubelet) writeConfig() error {
	config := table.Table{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		// Pods from files, in addition to those of an API server.
		"staticPodPath":                k.at("manifests"),
		"fileCheckFrequency":           "2s", // inotify reports changes at once; this is for missed ones
		"syncFrequency":                "10s",
		"registerNode":                 k.Kubeconfig != "",
		"enableControllerAttachDetach": false,

		"podLogsDir":               k.at("logs"),
		"volumePluginDir":          k.at("plugins"),
		"containerRuntimeEndpoint": k.Endpoint,

		"address":            k.Address,
		"port":               k.ports.api,
		"readOnlyPort":       k.ports.readOnly,
		"healthzBindAddress": "127.0.0.1",
		"healthzPort":        k.ports.health,
		"authentication":     table.Table{"anonymous": table.Table{"enabled": true}, "webhook": table.Table{"enabled": false}},
		"authorization":      table.Table{"mode": "AlwaysAllow"},

		// The machine is not ours.
		"protectKernelDefaults":  true, // the kubelet only compares sysctls, with files of ours
		"makeIPTablesUtilChains": false,
		"cgroupDriver":           "cgroupfs",
		"cgroupRoot":             k.cgroup(),
		"cgroupsPerQOS":          true,
		"enforceNodeAllocatable": []string{"pods"},
		"failCgroupV1":           false,
		"failSwapOn":             false,
		"oomScoreAdj":            0, // any lower score needs CAP_SYS_RESOURCE
		// However full its disk is.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": table.Table{
			"memory.available": "1Mi",
			"nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
	}
	var extra table.Table
	if err := yaml.Unmarshal([]byte(k.ExtraYAML), &extra); err != nil {
		return fmt.Errorf("testbed: reading the extra YAML for kubelet %s: %w", k.Name, err)
	}
	table.Merge(config, extra)
	data, err := json.MarshalIndent(config, "", "  ")
	if err == nil {
		err = os.WriteFile(k.at("config.yaml"), data, 0o644)
	}
	if err == nil && k.DropIn != "" {
		if err = os.MkdirAll(k.at("conf.d"), 0o755); err == nil {
			head := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
			err = os.WriteFile(k.at("conf.d/10-drop-in.conf"), []byte(head+k.DropIn), 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("testbed: writing kubelet's configuration: %w", err)
	}
	return nil
}
