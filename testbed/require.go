package testbed

import (
	"context"
	"os"
	"slices"
	"testing"
)

// Require returns the binaries that a test needs, named as for [BuildOnly], [ContainerComponents] when none are
// named; what is missing is built, with progress on standard error. Where this machine cannot run
// containers, or a kubelet for a test that names it, the test is skipped and says why. With CI=true in the
// environment it fails instead, so that a CI that lost the ability cannot stay green. Tests that run with
// -short are skipped everywhere.
func Require(t testing.TB, names ...string) Binaries {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: real runtimes take their time (-short)")
	}
	if reasons := requirementsOf(names); len(reasons) > 0 {
		for _, err := range reasons {
			t.Log(err)
		}
		if os.Getenv("CI") == "true" {
			t.Fatal("real runtimes cannot run here, and with CI=true that is a failure")
		}
		t.Skip("left out: real runtimes cannot run here")
	}
	if len(names) == 0 {
		names = ContainerComponents()
	}
	// Not t.Context: a build that was begun is of use to the next test.
	binaries, err := BuildOnly(context.Background(), os.Stderr, names...)
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

func requirementsOf(names []string) []error {
	if slices.Contains(names, KubeletBinary) {
		return KubeletRequirements()
	}
	return Requirements()
}
