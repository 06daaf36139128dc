package build

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// The components that can be built. Most have the name of the folder in pins that pins them. Those marked "optional" are
// built only on request.
const (
	Containerd17 = "containerd17" // containerd, its shim and ctr: serves runtime.v1 and runtime.v1alpha2
	Containerd24 = "containerd24" // the same of the 2.x line: serves only runtime.v1
	Runc         = "runc"
	CNI          = "cni"       // bridge, host-local and loopback
	NoSeccomp    = "noseccomp" // containerd calls it instead of runc: it drops seccomp profiles and executes runc
	Crictl       = "crictl"
	Critest      = "critest" // optional
	CRIO         = "crio"    // CRI-O and its pinns; optional
	App          = "app"     // the only program in the test images
	Kubelet      = "kubelet" // takes several minutes to build; optional
	Nerdctl      = "nerdctl" // optional
	Guest        = "guest"   // runs commands in the virtual machine of testbed/vm; optional
	GVisor       = "gvisor"  // gVisor's runsc and its shim; optional
	Dockerd      = "dockerd" // optional, as is
	CRIDockerd   = "cri-dockerd"
	Koordinator  = "koordinator" // KoordRuntimeProxy; optional
	E2ENode      = "e2enode"     // Kubernetes' own tests of a node; ginkgo, agnhost and nonewprivs are in Cluster; optional
	Cluster      = "cluster"     // etcd, kube-apiserver, its controllers, the scheduler and kubectl; optional
)

// A component is a set of packages of one module that are built and cached together.
type component struct {
	name     string   // one of the constants above
	dir      string   // the nested module, below the source folder
	module   string   // whose required version is the component's; empty for our own code
	packages []string // arguments of go build
	binaries []string // names of the results
	cgo      bool     //
	tags     string   //
	stamp    string   // the string variable that holds the version, for -ldflags -X
	inputs   []string // globs below dir: files that determine the result, in addition to this recipe; of a module, its pins
	c        string   // a glob in the module: sources of its binary in C, the last of binaries; empty for none
	patch    *patch   // a change of its sources; nil for none
	test     bool     // the only package is a test, to be compiled
	measured bool     // its speed matters
	extra    bool     // built only on request: containers run without it
}

// noExtraSnapshotters leaves out snapshotters that no test uses, and that need headers or tools of the machine.
const noExtraSnapshotters = "no_aufs,no_btrfs,no_devmapper,no_zfs"

// pinned returns the nested module that pins a component, relative to the source folder.
func pinned(name string) string { return filepath.Join("build", "pins", name) }

var components = []component{
	{
		name: Containerd17, dir: pinned(Containerd17), module: "github.com/containerd/containerd",
		packages: []string{
			"github.com/containerd/containerd/cmd/containerd",
			"github.com/containerd/containerd/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/cmd/ctr",
		},
		binaries: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		tags:     noExtraSnapshotters,
		stamp:    "github.com/containerd/containerd/version.Version",
	},
	{
		name: Containerd24, dir: pinned(Containerd24), module: "github.com/containerd/containerd/v2",
		packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
		binaries: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		tags:     noExtraSnapshotters,
		stamp:    "github.com/containerd/containerd/v2/version.Version",
	},
	{
		// cgo for nsexec, which enters namespaces before the Go runtime starts. No seccomp tag: that
		// would need libseccomp on the machine. Hence noseccomp.
		name: Runc, dir: pinned(Runc), module: "github.com/opencontainers/runc",
		packages: []string{"github.com/opencontainers/runc"},
		binaries: []string{"runc"},
		cgo:      true,
	},
	{
		name: NoSeccomp, dir: ".",
		packages: []string{"./internal/noseccomp"},
		binaries: []string{"noseccomp"},
		inputs:   []string{"internal/noseccomp/*.go"},
	},
	{
		name: CNI, dir: pinned(CNI), module: "github.com/containernetworking/plugins",
		packages: []string{
			"github.com/containernetworking/plugins/plugins/main/bridge",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
		},
		binaries: []string{"bridge", "loopback", "host-local"},
		stamp:    "github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion",
	},
	{
		name: Crictl, dir: pinned(Crictl), module: "sigs.k8s.io/cri-tools",
		packages: []string{"sigs.k8s.io/cri-tools/cmd/crictl"},
		binaries: []string{"crictl"},
		stamp:    "sigs.k8s.io/cri-tools/pkg/version.Version",
	},
	{
		name: Critest, dir: pinned(Crictl), module: "sigs.k8s.io/cri-tools",
		packages: []string{"sigs.k8s.io/cri-tools/cmd/critest"},
		binaries: []string{"critest.test"},
		stamp:    "sigs.k8s.io/cri-tools/pkg/version.Version",
		test:     true,
		extra:    true,
	},
	{
		name: CRIO, dir: pinned(CRIO), module: "github.com/cri-o/cri-o",
		packages: []string{"github.com/cri-o/cri-o/cmd/crio"},
		binaries: []string{"crio", "pinns"},
		cgo:      true,
		tags:     "containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs btrfs_noversion",
		c:        "pinns/src/*.c",
		extra:    true,
	},
	{
		name: App, dir: ".",
		packages: []string{"./internal/app"},
		binaries: []string{"app"},
		inputs:   []string{"internal/app/*.go"},
	},
	{
		name: Kubelet, dir: pinned(Kubelet), module: "k8s.io/kubernetes",
		packages: []string{"k8s.io/kubernetes/cmd/kubelet"},
		binaries: []string{"kubelet"},
		stamp:    "k8s.io/component-base/version.gitVersion",
		extra:    true,
	},
	{
		name: Guest, dir: ".",
		packages: []string{"./internal/guest"},
		binaries: []string{"guest"},
		inputs:   []string{"internal/guest/*.go", "internal/serial/*.go"},
		extra:    true,
	},
	{
		name: GVisor, dir: pinned(GVisor), module: "gvisor.dev/gvisor",
		packages: []string{"gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/shim"},
		binaries: []string{"runsc", "shim"},
		patch:    &patch{"pkg/shim/v1/manager.go", "oomScoreMax = -999", "oomScoreMax = 0"}, // any lower score needs CAP_SYS_RESOURCE
		extra:    true,
	},
	{
		name: Dockerd, dir: pinned(Dockerd), module: "github.com/docker/docker",
		packages: []string{"github.com/docker/docker/cmd/dockerd"},
		binaries: []string{"dockerd"},
		stamp:    "github.com/docker/docker/dockerversion.Version",
		extra:    true,
	},
	{
		name: CRIDockerd, dir: pinned(CRIDockerd), module: "github.com/Mirantis/cri-dockerd",
		packages: []string{"github.com/Mirantis/cri-dockerd"},
		binaries: []string{"cri-dockerd"},
		extra:    true,
	},
	{
		name: E2ENode, dir: pinned(Kubelet), module: "k8s.io/kubernetes",
		packages: []string{"k8s.io/kubernetes/test/e2e_node"},
		binaries: []string{"e2e_node.test"},
		test:     true,
		extra:    true,
	},
	{
		name: Cluster, dir: pinned(Kubelet), module: "k8s.io/kubernetes",
		packages: []string{
			"k8s.io/kubernetes/cmd/kube-apiserver",
			"k8s.io/kubernetes/cmd/kube-controller-manager",
			"k8s.io/kubernetes/cmd/kube-scheduler",
			"k8s.io/kubernetes/cmd/kubectl",
			"go.etcd.io/etcd/server/v3",
			"github.com/onsi/ginkgo/v2/ginkgo",
			"k8s.io/kubernetes/test/images/agnhost",
			"k8s.io/kubernetes/test/images/nonewprivs",
		},
		binaries: []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "server", "ginkgo", "agnhost", "nonewprivs"}, // server is etcd
		stamp:    "k8s.io/component-base/version.gitVersion",
		extra:    true,
	},
	{
		name: Koordinator, dir: pinned(Koordinator), module: "github.com/koordinator-sh/koordinator",
		packages: []string{"github.com/koordinator-sh/koordinator/cmd/koord-runtime-proxy"},
		binaries: []string{"koord-runtime-proxy"},
		measured: true,
		extra:    true,
	},
	{
		name: Nerdctl, dir: pinned(Nerdctl), module: "github.com/containerd/nerdctl/v2",
		packages: []string{"github.com/containerd/nerdctl/v2/cmd/nerdctl"},
		binaries: []string{"nerdctl"},
		stamp:    "github.com/containerd/nerdctl/v2/pkg/version.Version",
		extra:    true,
	},
}

func componentNamed(name string) (component, error) {
	i := slices.IndexFunc(components, func(c component) bool { return c.name == name })
	if i < 0 {
		var names []string
		for _, c := range components {
			names = append(names, c.name)
		}
		return component{}, fmt.Errorf("testbed: %q: no such component (there are %s)", name, strings.Join(names, ", "))
	}
	return components[i], nil
}

// ForContainers returns the components that are needed to run containers: all except the optional ones.
func ForContainers() []string {
	var names []string
	for _, c := range components {
		if !c.extra {
			names = append(names, c.name)
		}
	}
	return names
}

// ForContainerd returns the components that a containerd of a version needs: "1.7" or "2.4".
func ForContainerd(version string) []string {
	other := map[string]string{"1.7": Containerd24, "2.4": Containerd17}[version]
	return slices.DeleteFunc(ForContainers(), func(name string) bool { return name == other || name == Crictl })
}

// version reads the pinned version from the nested module's go.mod, the only place that has it.
func (c component) version(source string) (string, error) {
	if c.module == "" {
		return "local", nil
	}
	path := filepath.Join(source, c.dir, "go.mod")
	mod, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("testbed: reading the pins of %s: %w", c.name, err)
	}
	line := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(c.module) + ` (v\S+)`).FindSubmatch(mod)
	if line == nil {
		return "", fmt.Errorf("testbed: %s requires no version of %s (add it with go get -tool)", path, c.module)
	}
	return string(line[1]), nil
}

// key returns the name of the cache folder: equal keys mean equal results of a build.
func (c component) key(source, version string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, c.args(version, ""), c.cgo)
	if c.patch != nil {
		fmt.Fprintln(h, *c.patch)
	}
	inputs := c.inputs
	if c.module != "" {
		inputs = []string{"go.mod", "go.sum"}
	}
	for _, glob := range inputs {
		files, err := filepath.Glob(filepath.Join(source, c.dir, glob))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return "", fmt.Errorf("testbed: reading what %s is built from: %w", c.name, err)
			}
			fmt.Fprintf(h, "%s %d\n%s", filepath.Base(file), len(data), data)
		}
	}
	return fmt.Sprintf("%s-%s-%s", c.name, version, hex.EncodeToString(h.Sum(nil))[:10]), nil
}

// quickly makes the compiler leave out debug information, inlining, and the optimizations that take it the most time. It
// then has a third less work. Programs that only tests run need not be the fastest. (-N would leave out more, and make
// programs so large that their links take longer.)
const quickly = "-dwarf=false -l -d=ssa/prove/off,ssa/nilcheckelim/off,ssa/generic_cse/off,ssa/lowered_cse/off,ssa/sccp/off," +
	"ssa/dse/off,ssa/memcombine/off,ssa/branchelim/off,ssa/early_fuse/off,ssa/late_fuse/off,ssa/phiopt/off"

// args is the go command line that builds the component into out.
func (c component) args(version, out string) []string {
	gcflags, ldflags := "all="+quickly, "-s -w"
	if c.measured {
		gcflags = ""
	}
	if c.stamp != "" {
		ldflags += " -X " + c.stamp + "=" + strings.TrimSuffix(version, "+incompatible")
	}
	verb := []string{"build"}
	if c.test {
		verb = []string{"test", "-c"}
	}
	args := append(verb, "-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags", gcflags, "-ldflags", ldflags)
	if c.tags != "" {
		args = append(args, "-tags", c.tags)
	}
	return append(append(args, "-o", out+string(filepath.Separator)), c.packages...)
}
