// Package npd pins node-problem-detector, which a test in testbed/cluster builds. It is a module of its own, because its
// libraries of Kubernetes are old.
package npd
