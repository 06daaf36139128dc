// Package cluster has no code, only tests: a whole cluster of one node, with etcd, kube-apiserver, its controllers, the
// scheduler and kubectl, whose kubelet speaks to criproxy in front of two containerds. People and objects that only an API
// server has are tried here: kubectl, RuntimeClasses, image pull secrets, drains, and the figures that a kubelet gives of
// the pods of both runtimes.
//
// Building it takes fifteen minutes on two cores, so that the gate leaves it out: make nightly. The test of the DaemonSet,
// and of kubectl criproxy, is in make test-all as well.
package cluster
