// Package testbed builds real container runtimes from pinned Go modules and runs them side by side on
// one small machine, so that criproxy is tried against containerd itself and not against a stand-in.
//
// A test starts a registry and as many containerds as it likes:
//
//	func TestPods(t *testing.T) {
//		// Skipped, and why is said, where no container can run; with CI=true it fails there.
//		reg := testbed.NewRegistry(t)
//		old := testbed.NewContainerd(t, reg, testbed.Config{Version: "1.7"})
//		two := testbed.NewContainerd(t, reg, testbed.Config{Version: "2.4"})
//		runtime, err := old.Runtime(t.Context()) // the kubelet's own CRI client
//		...
//	}
//
// NewKubelet starts a real kubelet on a CRI socket, which may be a containerd's or a proxy's.
//
// Outside of tests the same is Build, StartRegistry, StartContainerd, StartKubelet and Destroy.
//
// Everything an instance makes lies in its own folder, on its own bridge, and below its own cgroup,
// and [Containerd.Destroy] takes all of it away again. What cannot lie there (1.7 puts the sockets of its shims
// into /run/containerd/s, the CNI library its cache into /var/lib/cni) is found and removed too;
// [Leftovers] says what is still there.
//
// The command testbed/cmd/testbed does the same for people: testbed up, testbed down.
package testbed
