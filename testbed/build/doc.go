// Package build fetches and builds what the testbed runs, from pinned Go modules: containerd of two lines, runc, the CNI
// plugins, crictl, nerdctl, the kubelet, the program inside the test images. The folder pins holds a nested
// module for each; its go.mod and go.sum say what is built.
//
// Builds are kept in [CacheDir]. [Get] returns where they are and makes those that are missing.
package build
