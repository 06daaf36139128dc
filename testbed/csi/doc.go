// Package csi holds the proof that criproxy is not about CRI: two storage drivers behind one socket, by the profile
// docs/profiles/csi.yaml and the .proto file of CSI alone, judged by the sanity suite of the CSI project
// (github.com/kubernetes-csi/csi-test).
//
// It is a module of its own so that nothing that the suite needs is needed by criproxy.
package csi
