package packages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
)

// emulator runs arm64 programs on other processors.
const emulator = "qemu-aarch64-static"

func TestArm64PackagesHoldAStaticProgramThatRuns(t *testing.T) {
	needs(t, "dpkg", "rpm", "tar", emulator)
	dist := t.TempDir()
	require.NoError(t, build.Packages(t.Context(), versions[0], "arm64", dist, "dist", "deb", "rpm"))
	output := func(program string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = dist
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		require.NoError(t, err, "%s %s: %s", program, strings.Join(args, " "), complaints.String())
		return strings.TrimSpace(string(out))
	}

	program := one(t, dist, "criproxy-0.0.1-linux-arm64")
	data, err := os.ReadFile(program)
	require.NoError(t, err)
	sum := sha256.Sum256(data)
	want := hex.EncodeToString(sum[:])
	output("sha256sum", "-c", one(t, dist, "*.sha256"))

	deb := one(t, dist, "*_arm64.deb")
	assert.Equal(t, "arm64", output("dpkg-deb", "-f", deb, "Architecture"))
	output("dpkg-deb", "-x", deb, "deb")
	assert.Equal(t, want, strings.Fields(output("sha256sum", "deb/usr/bin/criproxy"))[0], "it is another program than that of make dist")
	rpm := one(t, dist, "*.aarch64.rpm")
	assert.Equal(t, "aarch64", output("rpm", "-qp", "--qf", "%{ARCH}", rpm))
	assert.Contains(t, strings.Split(output("rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEDIGESTS}\n]", rpm), "\n"), "/usr/bin/criproxy "+want)

	file, err := elf.NewFile(bytes.NewReader(data))
	require.NoError(t, err)
	assert.Equal(t, elf.EM_AARCH64, file.Machine)
	for _, p := range file.Progs {
		assert.NotContains(t, []elf.ProgType{elf.PT_INTERP, elf.PT_DYNAMIC}, p.Type, "it is not static")
	}

	assert.Contains(t, output(emulator, program, "version"), "criproxy 0.0.1")
	assert.Contains(t, output(emulator, program, "demo", "-once"), "hello from vm", "two runtimes, a client, and criproxy between")
}
