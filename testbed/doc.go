// Package testbed builds real container runtimes from pinned Go modules and runs them side by side on
// one small machine, so that tests can try criproxy with containerd itself.
//
// A test starts a registry and any number of containerds:
//
//	func TestPods(t *testing.T) {
//		// If containers cannot run, this skips the test and says why; with CI=true it fails the test.
//		reg := testbed.NewRegistry(t)
//		old := testbed.NewContainerd(t, reg, runtimes.Config{Version: "1.7"})
//		two := testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4"})
//		runtime, err := old.Runtime(t.Context()) // the kubelet's own CRI client
//		...
//	}
//
// NewKubelet starts a real kubelet on a CRI socket, which may be a containerd's or a proxy's. NewProxy starts criproxy.
//
// This package is for tests. It combines the packages below it, which other programs can use as well. Each package
// imports only those above it in this list:
//
//	host      folders, processes, cgroups, bridges and mount namespaces, and how to remove all of them
//	build     fetches and builds the programs
//	runtimes  containerd, the images and the registry that it pulls from, clients
//	kubelet   a kubelet, alone or a node of an API server, and its own API
//	proxy     criproxy, and its admin socket
//
// An instance has its own folder, bridge and cgroup, and its method Destroy removes all of these. Destroy also
// finds and removes files that cannot be in the folder: 1.7 puts the sockets of its shims into
// /run/containerd/s, and the CNI library its cache into /var/lib/cni. [host.Leftovers] lists what remains.
//
// The command testbed/cmd/testbed does the same for people: testbed up, testbed down.
package testbed
