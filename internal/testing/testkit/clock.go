package testkit

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// OnSimulatedClock runs a test in a bubble of [synctest], on one processor. The timers of a bubble share one context of the race
// detector, and if two processors run them at once, the detector of Go 1.26 ends the whole test program with "ThreadSanitizer:
// CHECK failed": golang/go#78156, which Go 1.27 has mended. The calling test must not be parallel.
func OnSimulatedClock(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, test)
}
