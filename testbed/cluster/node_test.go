package cluster_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/plane"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) {
	testbed.Main(m, append(build.ForContainers(), build.Kubelet, build.Cluster)...)
}

const (
	two    = "two.test"      // the second runtime's name
	public = "registry.test" // the runtimes' name for the testbed's registry
	closed = "closed.test"   // their name for a registry that requires credentials
	image  = public + "/testbed/app:1"
)

// A cluster has one node, whose kubelet speaks to criproxy in front of two containerds.
type cluster struct {
	*plane.Plane
	one, two *runtimes.Containerd
	proxy    *proxy.Proxy
	kubelet  *kubelet.Kubelet
	registry *runtimes.Registry
	yaml     string // criproxy's configuration
	endpoint string // the endpoint that kubelet uses
	node     string // its name, an address so that the API server finds it: the machine's on the bridge of the first
}

// variant is how a cluster differs from the usual one.
type variant struct {
	ids    string
	direct bool   // kubelet uses the first containerd instead of criproxy
	yaml   string // additional configuration of criproxy
}

// newCluster starts all of it, and returns when the node is ready. Everything is gone when the test ends.
func newCluster(t *testing.T, v variant) *cluster {
	t.Helper()
	testbed.Require(t, build.Kubelet)
	c := &cluster{Plane: plane.New(t)}
	reg := testbed.NewRegistry(t)
	secret, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: testbed.Require(t, build.App).App, Username: "lab", Password: "secret"})
	require.NoError(t, err)
	t.Cleanup(func() { secret.Close() })
	c.registry = reg
	config := runtimes.Config{Mirrors: map[string]string{public: reg.Addr, closed: secret.Addr, "registry.k8s.io": reg.Addr, "registry.example": reg.Addr}}
	config.Name = "one"
	c.one = testbed.NewContainerd(t, reg, config)
	config.Name = "two"
	c.two = testbed.NewContainerd(t, reg, config)
	c.yaml = fmt.Sprintf("ids: %s\nbackends:\n- address: %s\n- name: %s\n  address: %s\n  handlers: {two: runc}\n  credentials: true\n", v.ids, c.one.Socket(), two, c.two.Socket())
	c.yaml += v.yaml
	c.endpoint = c.one.Endpoint()
	asked := c.one.Socket() // the socket for kubelet's cAdvisor
	if !v.direct {
		c.proxy = testbed.NewProxy(t, c.yaml)
		c.endpoint, asked = c.proxy.Endpoint(), c.proxy.Socket()
	}
	bridge, err := net.InterfaceByName(c.one.Bridge())
	require.NoError(t, err)
	addresses, err := bridge.Addrs()
	require.NoError(t, err)
	c.node = addresses[0].(*net.IPNet).IP.String()
	c.kubelet = testbed.NewKubelet(t, kubelet.Config{
		Endpoint: c.endpoint, NodeName: c.node, Address: c.node, Kubeconfig: c.Kubeconfig, ExtraYAML: "maxPods: 200\n",
		Flags: []string{"--containerd=" + asked},
	})
	c.Apply(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: two}, handler: two}")
	c.AwaitOutput(t, "True", "get", "node", c.node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	c.AwaitOutput(t, "", "get", "node", c.node, "-o", "jsonpath={.spec.taints}")
	return c
}

// run makes a pod that runs the test program with args, on the second runtime if its class says so, and returns when it is
// ready.
func (c *cluster) run(t *testing.T, name, class string, args ...string) {
	t.Helper()
	if class != "" {
		class = "runtimeClassName: " + class + ","
	}
	quoted := ""
	for _, arg := range args {
		quoted += fmt.Sprintf("%q,", arg)
	}
	c.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {%s terminationGracePeriodSeconds: 1, containers: [{name: app, image: %q, args: [%s],
resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}}]}}`, name, class, image, quoted))
	c.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=2m")
}

// pods returns the names of the pods that run on a runtime, sorted.
func (c *cluster) pods(t *testing.T, rt *runtimes.Containerd) []string {
	t.Helper()
	client, err := rt.Runtime(t.Context())
	require.NoError(t, err)
	defer client.Close(context.Background())
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	list, err := client.ListPodSandbox(t.Context(), &runtimeapi.PodSandboxFilter{State: ready})
	require.NoError(t, err)
	var names []string
	for _, pod := range list {
		names = append(names, pod.GetMetadata().GetName())
	}
	slices.Sort(names)
	return names
}
