package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

func TestMain(m *testing.M) {
	if os.Getenv("BE_EMULATED") != "" {
		main()
	}
	os.Exit(m.Run())
}

func emulated(t *testing.T, command ...string) (string, error) {
	cmd := bounded.Command(t, os.Args[0], command...)
	cmd.Env = append(os.Environ(), "BE_EMULATED=yes")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestOnlyTheCommandHasAnEmulator(t *testing.T) {
	if _, err := exec.LookPath(emulator); err != nil {
		untested.Skip(t, err.Error()+": it is in Debian's package qemu-user-static")
	}
	out, err := emulated(t, "cat", binfmt+"/"+emulator)
	if err != nil && strings.Contains(out, "Linux 6.7") || strings.Contains(out, "not permitted") {
		untested.Skip(t, out)
	}
	require.NoError(t, err, out)
	assert.Contains(t, out, "enabled\n")
	assert.Contains(t, out, "flags: PF\n")
	assert.Contains(t, out, "\nmagic 7f454c460201000000000000000000000000b700\nmask ffffffffffff000000000000000000000000ffff\n")
	assert.NoFileExists(t, binfmt+"/"+emulator)

	out, err = emulated(t, "sh", "-c", "id -u; exit 7")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 7, exit.ExitCode())
	assert.Equal(t, "0\n", out)
}

func TestWithoutACommandEmulatedSaysHowToCallIt(t *testing.T) {
	out, err := emulated(t)
	assert.Error(t, err)
	assert.Equal(t, "emulated: no command; usage: emulated COMMAND [ARG...]\n", out)
}
