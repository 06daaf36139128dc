package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// A real sshd, on the loopback: keys, known hosts and the remote shell are as on a node.
func TestSSHReachesANodeThroughARealSSHD(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	program, err := exec.LookPath("sshd")
	if err != nil {
		program = "/usr/sbin/sshd"
	}
	if _, err := os.Stat(program); err != nil {
		untested.Skip(t, "there is no sshd: apt-get install openssh-server")
	}
	me, err := user.Current()
	require.NoError(t, err)
	f := newFleet(t)
	socket := f.serve("node", nodeWith("node", func(*admin.Report) {}))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	for _, key := range []string{"host", "user"} {
		out, err := bounded.Command(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	public, err := os.ReadFile(at("host.pub"))
	require.NoError(t, err)
	allowed, err := os.ReadFile(at("user.pub"))
	require.NoError(t, err)
	write("authorized", string(allowed))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close()) // sshd opens it itself
	write("sshd_config", fmt.Sprintf("ListenAddress 127.0.0.1:%d\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nSetEnv PATH=%s\n",
		port, at("host"), at("authorized"), os.Getenv("PATH")))
	if os.Getuid() == 0 {
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755)) // where sshd, run as root, has no rights
	}
	log, err := os.Create(at("log"))
	require.NoError(t, err)
	defer log.Close()
	server := exec.Command(program, "-D", "-e", "-f", at("sshd_config"))
	server.Stderr = log
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() }) // it was killed
	testkit.Eventually(t, "sshd listens", func() bool {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	said := func() string { text, _ := os.ReadFile(at("log")); return string(text) }

	// ssh's own configuration says how to reach the node, as for any use of ssh.
	write("known", fmt.Sprintf("[127.0.0.1]:%d %s", port, public))
	write("ssh_config", fmt.Sprintf("Host node\n HostName 127.0.0.1\n Port %d\n User %s\n IdentityFile %s\n IdentitiesOnly yes\n UserKnownHostsFile %s\n", port, me.Username, at("user"), at("known")))
	bin := t.TempDir()
	client, err := exec.LookPath("ssh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "ssh"), []byte("#!/bin/sh\nexec "+client+" -F "+at("ssh_config")+` "$@"`+"\n"), 0o755))
	f.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))

	out, errOut, code := f.run("where", "-admin", "ssh://node"+socket, "web-node")
	require.Equal(t, 0, code, errOut+said())
	assert.Contains(t, out, "pod shop/web-node is on kata.io\n")
	_, errOut, code = f.run("status", "-admin", "ssh://node/run/it's not there")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "there is no admin socket at /run/it's not there", "the remote criproxy's own words")
	require.NoError(t, os.Remove(at("known")))
	_, errOut, code = f.run("status", "-admin", "ssh://node"+socket)
	assert.Equal(t, 1, code)
	assert.True(t, strings.Contains(errOut, "Host key verification failed"), errOut)
}
