// Package gvisor has no code, only tests: a pod in gVisor, which has a kernel of its own, on the second runtime behind
// criproxy, beside a pod of runc's on the first. It is the reason why people want two runtimes.
package gvisor
