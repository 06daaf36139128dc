package server

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) {
	testkit.KeepLog()
	_ = flag.Set("test.parallel", "8") // most tests wait, for outages to be noticed; -parallel goes first
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error() + "\n") // it cannot be reported elsewhere
		code = 1
	}
	os.Exit(code)
}
