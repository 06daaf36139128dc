package integration

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
)

func TestMain(m *testing.M) {
	testbed.Main(suite{m}, append(build.ForContainers(), build.Nerdctl)...)
}

// suite runs all tests, with set-up and clean-up.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	if !testing.Short() && len(testbed.Requirements()) == 0 {
		_, _ = buildProxy() // the tests that need it return the error again
	}
	klog.SetLogger(klog.Logger{}) // silence: the kubelet's client logs each failed call, and tests make such calls
	code := s.m.Run()
	if err := shared.destroy(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// buildProxy builds criproxy with the race detector, once, and returns the program's path.
var buildProxy = sync.OnceValues(func() (string, error) { return build.Proxy(context.Background()) })

// criproxy returns the path of the program. A test that calls it is skipped on the same machines as the testbed's.
func criproxy(t testing.TB) string {
	t.Helper()
	testbed.Require(t, build.App)
	program, err := buildProxy()
	require.NoError(t, err)
	return program
}
