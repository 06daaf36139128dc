package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/testbed"
)

func TestMain(m *testing.M) {
	testbed.Main(suite{m}, append(testbed.ContainerComponents(), testbed.Nerdctl)...)
}

// suite is all tests, with what is done before the first and after the last.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	if !testing.Short() && len(testbed.Requirements()) == 0 {
		_, _ = build() // whoever needs it learns of the error
	}
	klog.SetLogger(klog.Logger{}) // silence: the kubelet's client tells of each failed call, and tests make them
	code := s.m.Run()
	if err := shared.destroy(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if binDir != "" {
		os.RemoveAll(binDir)
	}
	return code
}

// binDir is the folder of the criproxy that is tested.
var binDir string

// build builds criproxy with the race detector, once, and returns the program's path.
var build = sync.OnceValues(func() (string, error) {
	source, err := testbed.SourceDir()
	if err != nil {
		return "", err
	}
	if binDir, err = os.MkdirTemp("", "criproxy-"); err != nil {
		return "", err
	}
	program := filepath.Join(binDir, "criproxy")
	cmd := exec.Command("go", "build", "-race", "-buildvcs=false", "-o", program, "./cmd/criproxy")
	cmd.Dir = filepath.Dir(source)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building criproxy: %w\n%s", err, out)
	}
	return program, nil
})

// criproxy returns the path of the program. A test that asks is skipped where the testbed's are.
func criproxy(t testing.TB) string {
	t.Helper()
	testbed.Require(t, testbed.App)
	program, err := build()
	require.NoError(t, err)
	return program
}
