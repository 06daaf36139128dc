// Package untested lets a test say what it cannot test on this machine.
package untested

import (
	"os"
	"testing"
)

// Skip skips the rest of a test. The reason says what is missing, and how to get it. With CI=true in the environment Skip
// fails the test instead, so that a CI that has lost what the test needs cannot stay green. With -short it always skips:
// make test needs nothing but Go, on any machine.
func Skip(t testing.TB, reason any) {
	t.Helper()
	if os.Getenv("CI") == "true" && !testing.Short() {
		t.Fatalf("not tested: %v (with CI=true this is a failure)", reason)
	}
	t.Skipf("not tested: %v", reason)
}

// TakesLong leaves a test out of make test: it takes seconds of a processor, measures what a busy machine changes, or needs
// a program that Go does not build. make test-all runs it.
func TakesLong(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out of make test; make test-all runs it")
	}
}
