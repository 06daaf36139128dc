// Package build fetches and builds the programs that the testbed runs, from pinned Go modules: two lines of containerd,
// runc, the CNI plugins, crictl, nerdctl, the kubelet, the program in the test images, and others. The folder pins holds
// a nested module for each, whose go.mod and go.sum pin the version.
//
// Builds are cached in [CacheDir]. [Get] returns where they are, and builds those that are missing.
package build
