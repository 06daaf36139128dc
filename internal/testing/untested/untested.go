// Package untested lets a test say what it cannot test on this machine.
package untested

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// listVariable names the file that gets a line for each test that Skip skips: the reason, a tab, and the test. make
// test-all prints it at its end.
const listVariable = "CRIPROXY_UNTESTED"

// Skip skips the rest of a test. The reason says what is missing, and how to get it. With CI=true in the environment Skip
// fails the test instead, so that a CI that has lost what the test needs cannot stay green. With -short it always skips:
// make test needs nothing but Go, on any machine.
func Skip(t testing.TB, reason any) {
	t.Helper()
	if file := os.Getenv(listVariable); file != "" {
		if err := note(file, t.Name(), reason); err != nil {
			t.Error(err)
		}
	}
	if os.Getenv("CI") == "true" && !testing.Short() {
		t.Fatalf("not tested: %v (with CI=true this is a failure)", reason)
	}
	t.Skipf("not tested: %v", reason)
}

// note adds a line to a file that exists: a user who is not its owner could not make it in /tmp.
func note(file, test string, reason any) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	line := strings.Join(strings.Fields(fmt.Sprint(reason)), " ") + "\t" + test + "\n"
	if _, err = f.WriteString(line); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// TakesLong leaves a test out of make test: it takes seconds of a processor, measures what a busy machine changes, or needs
// a program that Go does not build. make test-all runs it.
func TakesLong(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out of make test; make test-all runs it")
	}
}
