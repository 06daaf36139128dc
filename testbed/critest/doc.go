// Package critest has no code, only tests: critest, the suite of SIG Node for container runtimes, on a runtime by itself and
// through criproxy, where exactly the same specs have to pass.
//
// The gate runs the specs that fast names. All of them take half an hour for each version: go test -all, which also writes
// the table of docs/evidence/conformance.md with -report.
//
// With -on crio it runs on CRI-O, by hand alone: with Debian's conmon 2.1.6 a StopPodSandbox of CRI-O's hangs now and then, also
// without criproxy, and takes the run with it.
package critest
