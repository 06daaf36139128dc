package critest

import (
	"context"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
)

// What became of a spec.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// outcomes says what became of the specs of a run, and why.
type outcomes map[string]outcome // :: spec → …

type outcome struct{ state, why string }

// count says how many specs ended in a state.
func (o outcomes) count(state string) (n int) {
	for _, spec := range o {
		if spec.state == state {
			n++
		}
	}
	return n
}

// critest runs the specs whose names match focus, all of them if it is empty, at an endpoint.
func critest(t *testing.T, endpoint, focus string) outcomes {
	t.Helper()
	program := testbed.Require(t, build.Critest).Critest
	dir := t.TempDir()
	// No pull over the wire takes long here, and what hangs is a failure.
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
	data, err := os.ReadFile(filepath.Join(dir, "junit.xml"))
	require.NoError(t, err, "critest has left no report: %v\n%s", runErr, log)
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Failure struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
				Skipped struct {
					Message string `xml:"message,attr"`
				} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(data, &report))
	o := outcomes{}
	for _, suite := range report.Suites {
		for _, spec := range suite.Cases {
			switch {
			case !strings.HasPrefix(spec.Name, "[It] "):
				// What is done before and after all.
			case spec.Status == passed:
				o[spec.Name] = outcome{state: passed}
			case spec.Status == skipped && spec.Skipped.Message == "skipped":
				// Out of focus.
			case spec.Status == skipped:
				o[spec.Name] = outcome{skipped, spec.Skipped.Message}
			default:
				o[spec.Name] = outcome{failed, spec.Failure.Message}
			}
		}
	}
	return o
}
