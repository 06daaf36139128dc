// Package csi shows that criproxy is not limited to CRI: it puts two storage drivers behind one socket, with only the
// profile docs/profiles/csi.yaml and the .proto file of CSI, and runs the sanity suite of the CSI project
// (github.com/kubernetes-csi/csi-test).
//
// It is a separate module so that criproxy does not depend on the modules of the suite.
package csi
