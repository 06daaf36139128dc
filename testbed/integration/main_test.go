package integration

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
)

func TestMain(m *testing.M) {
	testbed.Limit = 14 * time.Minute
	testbed.Main(suite{m}, append(build.ForContainers(), build.Nerdctl)...)
}

// suite runs all tests, with set-up and clean-up.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	if !testing.Short() && len(testbed.Requirements()) == 0 {
		_, _ = build.Proxy() // the tests that need it return the error again
	}
	klog.SetLogger(klog.Logger{}) // silence: the kubelet's client logs each failed call, and tests make such calls
	code := s.m.Run()
	if err := shared.destroy(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// criproxy returns the path of the program. A test that calls it is skipped on the same machines as the testbed's.
func criproxy(t testing.TB) string {
	t.Helper()
	testbed.Require(t, build.App)
	program, err := build.Proxy()
	require.NoError(t, err)
	return program
}
