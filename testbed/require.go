package testbed

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Require returns the binaries that a test needs, named as for [build.Get], [build.ForContainers] when none are
// named; what is missing is built, with progress on standard error. Where this machine cannot run
// containers, or a kubelet or CRI-O for a test that names it, the test is skipped and says why. With CI=true in the
// environment it fails instead, so that a CI that lost the ability cannot stay green. Tests that run with
// -short are skipped everywhere.
func Require(t testing.TB, names ...string) build.Binaries {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: real runtimes take their time (-short)")
	}
	if reasons := requirementsOf(names); len(reasons) > 0 {
		for _, err := range reasons {
			t.Log(err)
		}
		LeaveOut(t, "real runtimes cannot run here")
	}
	// Not t.Context: a build that was begun is of use to the next test.
	binaries, err := build.Get(context.Background(), os.Stderr, names...)
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

// LeaveOut skips the rest of a test and says why. With CI=true in the environment it fails the test instead, so that a
// CI that has lost what the test needs cannot stay green.
func LeaveOut(t testing.TB, reason any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%v, and with CI=true that is a failure", reason)
	}
	t.Skipf("left out: %v", reason)
}

// Requirements tells why this machine cannot run real containers, each reason with what would mend it. None means that
// it can.
func Requirements() []error {
	reasons := host.Requirements()
	if err := build.Requirement(); err != nil {
		reasons = append(reasons, err)
	}
	return reasons
}

func requirementsOf(names []string) []error {
	reasons := Requirements()
	if slices.Contains(names, build.Kubelet) {
		reasons = append(reasons, host.KubeletRequirements()...)
	}
	if slices.Contains(names, build.CRIO) {
		reasons = append(reasons, runtimes.CRIORequirements()...)
	}
	return reasons
}
