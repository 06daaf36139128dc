// Package testbed builds real container runtimes from pinned Go modules and runs them side by side on
// one small machine, so that tests try criproxy against containerd itself and not against a stand-in.
//
// A test starts a registry and as many containerds as it likes:
//
//	func TestPods(t *testing.T) {
//		// Where no container can run, this skips the test and says why; with CI=true it fails it.
//		reg := testbed.NewRegistry(t)
//		old := testbed.NewContainerd(t, reg, runtimes.Config{Version: "1.7"})
//		two := testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4"})
//		runtime, err := old.Runtime(t.Context()) // the kubelet's own CRI client
//		...
//	}
//
// NewKubelet starts a real kubelet on a CRI socket, which may be a containerd's or a proxy's. NewProxy starts criproxy.
//
// This package is for tests. It puts together what the packages below it do, which other programs can use as well. Each
// imports only those above it in this list:
//
//	host      folders, processes, cgroups, bridges and mount namespaces, and how to remove all of them
//	build     fetches and builds what runs
//	runtimes  containerd, the images and the registry that it pulls from, clients
//	kubelet   a kubelet, alone or a node of an API server, and its own API
//	proxy     criproxy, and its admin socket
//
// Everything an instance makes lies in its own folder, on its own bridge, and below its own cgroup,
// and its method Destroy takes all of it away again. What cannot lie there (1.7 puts the sockets of its shims
// into /run/containerd/s, the CNI library its cache into /var/lib/cni) is found and removed too;
// [host.Leftovers] says what is still there.
//
// The command testbed/cmd/testbed does the same for people: testbed up, testbed down.
package testbed
