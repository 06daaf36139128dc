// Package critest has no code, only tests: critest, the suite of SIG Node for container runtimes, on a runtime by itself and
// through criproxy, where exactly the same specs have to pass.
//
// The gate runs the specs that fast names. All of them take half an hour: go test -all, which also writes the table
// of docs/conformance.md with -report.
package critest
