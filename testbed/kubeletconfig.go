package testbed

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

// KubeletConfig says what kubelet to run. Binaries and Endpoint are needed; the zero value of everything
// else works.
type KubeletConfig struct {
	// Name tells instances apart in messages and in the name of their cgroup. Empty means "kubelet".
	Name string
	// Dir is the folder for everything the instance makes. Destroy removes it. Empty means a new one in the
	// temporary folder. It must be short, because sockets lie in it.
	Dir string
	// Binaries are what BuildOnly returned for [KubeletBinary].
	Binaries Binaries
	// Endpoint is the CRI socket: unix:///... It must answer before Start is called.
	Endpoint string
	// NodeName ends the name of every pod: web becomes web-NODENAME. Empty means one that no other
	// instance on this machine has.
	NodeName string
	// Verbosity is that of its log. Zero means 4, which has all events in it.
	Verbosity int
	// ExtraYAML is merged into the configuration file, field by field:
	//
	//	featureGates: {EventedPLEG: true}
	//	crashLoopBackOff: {maxContainerRestartPeriod: 1s}
	ExtraYAML string
	// DropIn is a file of its --config-dir, whose lines go before those of the configuration file. Empty means
	// that there is none.
	DropIn string
}

// ports are where a kubelet listens, all on 127.0.0.1.
type ports struct{ api, readOnly, health int }

// maxKubeletDir keeps DIR/root/pod-resources/kubelet.sock within the 107 bytes that the kernel allows.
const maxKubeletDir = 107 - len("/root/pod-resources/kubelet.sock")

// kubeletManifestName is the file by which a folder is known for a kubelet's.
const kubeletManifestName = "kubelet.json"

// withDefaults checks c and fills in what is empty. It makes the folder.
func (c KubeletConfig) withDefaults() (KubeletConfig, error) {
	if c.Name == "" {
		c.Name = "kubelet"
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`).MatchString(c.Name) {
		return c, fmt.Errorf("testbed: kubelet name %q: use letters, digits, dots, dashes and underscores only", c.Name)
	}
	if c.Binaries.Kubelet == "" {
		return c, fmt.Errorf("testbed: starting kubelet %s: KubeletConfig.Binaries lacks it (call testbed.BuildOnly(ctx, w, testbed.KubeletBinary) first)", c.Name)
	}
	if !strings.HasPrefix(c.Endpoint, "unix:///") {
		return c, fmt.Errorf("testbed: starting kubelet %s: endpoint %q: want unix:///PATH of a CRI socket", c.Name, c.Endpoint)
	}
	if c.Verbosity == 0 {
		c.Verbosity = 4
	}
	var err error
	if c.Dir == "" {
		c.Dir, err = os.MkdirTemp(shortTemp(), tempDirPrefix)
	} else {
		c.Dir, err = filepath.Abs(c.Dir)
	}
	if len(c.Dir) > maxKubeletDir {
		return c, fmt.Errorf("testbed: the folder %s is too long for a socket in it: use one of at most %d bytes", c.Dir, maxKubeletDir)
	}
	if err == nil {
		err = ClaimDir(c.Dir)
	}
	if err == nil {
		// Mounts are listed by their real path.
		c.Dir, err = filepath.EvalSymlinks(c.Dir)
	}
	if err != nil {
		return c, fmt.Errorf("testbed: making the folder of kubelet %s: %w", c.Name, err)
	}
	if c.NodeName == "" {
		c.NodeName = fmt.Sprintf("node-%08x", hash(c.Dir))
	}
	return c, nil
}

// sysctls are what the kubelet wants them to be, and would otherwise set for the whole machine.
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
	config := table{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		// Alone: no API server, pods from files.
		"staticPodPath":                k.at("manifests"),
		"fileCheckFrequency":           "2s", // changes are noticed at once; this is for what was missed
		"syncFrequency":                "10s",
		"registerNode":                 false,
		"enableControllerAttachDetach": false,

		"podLogsDir":               k.at("logs"),
		"volumePluginDir":          k.at("plugins"),
		"containerRuntimeEndpoint": k.Endpoint,

		"address":            "127.0.0.1",
		"port":               k.ports.api,
		"readOnlyPort":       k.ports.readOnly,
		"healthzBindAddress": "127.0.0.1",
		"healthzPort":        k.ports.health,
		"authentication":     table{"anonymous": table{"enabled": true}, "webhook": table{"enabled": false}},
		"authorization":      table{"mode": "AlwaysAllow"},

		// The machine is not ours.
		"protectKernelDefaults":  true, // sysctls are only compared, and with files of ours at that
		"makeIPTablesUtilChains": false,
		"cgroupDriver":           "cgroupfs",
		"cgroupRoot":             k.cgroup(),
		"cgroupsPerQOS":          true,
		"enforceNodeAllocatable": []string{"pods"},
		"failCgroupV1":           false,
		"failSwapOn":             false,
		"oomScoreAdj":            0, // any other takes CAP_SYS_RESOURCE
		// However full it is.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": table{
			"memory.available": "1Mi",
			"nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
	}
	var extra table
	if err := yaml.Unmarshal([]byte(k.ExtraYAML), &extra); err != nil {
		return fmt.Errorf("testbed: reading the extra YAML for kubelet %s: %w", k.Name, err)
	}
	merge(config, extra)
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

// The ports that connections to elsewhere are made from begin above these, so that none of them takes a
// kubelet's port while it is away.
const firstPort, lastPort = 20000, 32000

// takenPorts are those that freePorts has given away.
var takenPorts struct {
	sync.Mutex
	all map[int]bool
}

// freePorts finds ports on 127.0.0.1 that nobody listens on, nor was given here before.
func freePorts() (ports, error) {
	takenPorts.Lock()
	defer takenPorts.Unlock()
	if takenPorts.all == nil {
		takenPorts.all = map[int]bool{}
	}
	var free []int
	for try := 0; len(free) < 3; try++ {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if takenPorts.all[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && try > 1000 {
			return ports{}, fmt.Errorf("testbed: finding free ports for a kubelet: %w", err)
		}
		if err != nil {
			continue
		}
		listener.Close()
		takenPorts.all[port] = true
		free = append(free, port)
	}
	return ports{free[0], free[1], free[2]}, nil
}
