package testbed

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/internal/testing/watchdog"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Require returns the binaries that a test needs, named as for [build.Get]; without names, [build.ForContainers].
// It builds those that are missing, with progress on standard error. If this machine cannot run containers, or a
// kubelet or CRI-O for a test that names it, Require skips the test and says why, as [untested.Skip] does. With -short,
// Require always skips.
func Require(t testing.TB, names ...string) build.Binaries {
	t.Helper()
	watchdog.UnderWay(t)
	if testing.Short() {
		t.Skip("left out: real runtimes take their time (-short)")
	}
	if reasons := requirementsOf(names); len(reasons) > 0 {
		for _, err := range reasons {
			t.Log(err)
		}
		untested.Skip(t, "real runtimes cannot run here")
	}
	// Not t.Context: the next test can use a build that has begun. Each build bounds itself.
	binaries, err := build.Get(context.Background(), os.Stderr, names...)
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

// Requirements returns the reasons why this machine cannot run real containers, each with a remedy. If there are none,
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
