package critest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/junit"
)

// critest runs the specs whose names match focus, all of them if it is empty, at an endpoint.
func critest(t *testing.T, endpoint, focus string) junit.Outcomes {
	t.Helper()
	program := testbed.Require(t, build.Critest).Critest
	dir := t.TempDir()
	// Pulls are fast here, and a hanging one is a failure.
	args := []string{
		"-runtime-endpoint", endpoint, "-image-endpoint", endpoint, "-ginkgo.junit-report", filepath.Join(dir, "junit.xml"), "-config", filepath.Join(dir, "none"),
		"-ginkgo.no-color", "-ginkgo.seed=1", "-ginkgo.timeout=1h",
	}
	if focus != "" {
		args = append(args, "-ginkgo.focus", focus)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	log, runErr := cmd.CombinedOutput() // an error if a spec fails, which the report names
	if keep := os.Getenv("CRITEST_LOG"); keep != "" {
		os.WriteFile(filepath.Join(keep, filepath.Base(t.Name())+".log"), log, 0o644)
	}
	o, err := junit.Read(filepath.Join(dir, "junit.xml"))
	require.NoError(t, err, "critest has left no report: %v\n%s", runErr, log)
	return o
}
