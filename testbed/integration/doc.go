// Package integration has no code, only tests: criproxy, built from the module above and run as a process
// of its own, in front of a real containerd 1.7, which is the primary, and a real containerd 2.4, which is
// called two.test.
//
// What a test claims about a runtime it asks of that runtime, past the proxy, as well as through it: a
// runtime answers success to a Stop or Remove of an id that it has never heard of, so that a call that
// went to the wrong one would not show otherwise.
//
// One pair of runtimes and one proxy serve most tests (bench_test.go). They are started by the first test
// that needs them and destroyed after the last; what is left of them then fails the run, as does a proxy
// that saw a data race.
package integration
