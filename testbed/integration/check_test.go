package integration

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheckReportsRuntimesAndVersions(t *testing.T) {
	b := start(t)
	program := criproxy(t)
	args := []string{"check", "-connect", connect(b.one.Socket(), b.two.Socket()), "-listen", filepath.Join(folder(t), "criproxy.sock")}
	r := command(t, program, args...)
	assert.Zero(t, r.code, r.stderr)
	assert.Empty(t, r.stderr)
	assert.Regexp(t, `(?m)^\s+primary\s+`+regexp.QuoteMeta(b.one.Socket())+`\s+containerd v1\.7\.\d+\s+speaks runtime\.v1, runtime\.v1alpha2$`, r.stdout)
	assert.Regexp(t, `(?m)^\s+two\.test\s+`+regexp.QuoteMeta(b.two.Socket())+`\s+containerd v2\.4\.\d+\s+speaks runtime\.v1$`, r.stdout)

	r = command(t, program, append(args, "-o", "json")...)
	assert.Zero(t, r.code, r.stderr)
	var report struct {
		Backends []struct {
			Name, Address, Runtime, Error string
			Versions                      []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report), r.stdout)
	require.Len(t, report.Backends, 2)
	assert.Equal(t, []string{v1, v1alpha2}, report.Backends[0].Versions)
	assert.Equal(t, []string{v1}, report.Backends[1].Versions)
	assert.Regexp(t, `^containerd v1\.7\.`, report.Backends[0].Runtime)
	assert.Regexp(t, `^containerd v2\.4\.`, report.Backends[1].Runtime)
	for _, one := range report.Backends {
		assert.Empty(t, one.Error)
	}

	t.Run("and which of them is not there", func(t *testing.T) {
		absent := filepath.Join(folder(t), "absent.sock")
		r := command(t, program, "check", "-connect", connect(b.one.Socket(), absent))
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.stderr, absent)
		assert.Contains(t, r.stderr, second)
		assert.Regexp(t, `containerd v1\.7\.`, r.stdout, "the other is reported all the same")
	})
}
