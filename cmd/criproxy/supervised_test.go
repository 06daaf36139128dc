package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// systemd waits only for its own children. It does not wait for the child of a process that hands over, but kills it in
// the middle of its calls, and does not notice when it crashes. Found on a node with systemd 252, where systemctl
// restart after an upgrade made the calls under way fail.
func TestTheSuccessorIsItsSupervisorsChild(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	path := filepath.Join(p.dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer conn.Close() // nothing is left to be read
	main := make(chan int, 10)
	go func() {
		for text := make([]byte, 4096); ; {
			n, err := conn.Read(text)
			if err != nil {
				return // it is closed
			}
			var pid int
			if _, err := fmt.Sscanf(string(text[:n]), "MAINPID=%d", &pid); err == nil {
				main <- pid
			}
		}
	}()
	p.env = append(os.Environ(), "NOTIFY_SOCKET="+path)
	first := p.launch()
	done, thaw := p.hangs() // the old process stays until the call ends
	before := first.Process.Pid
	var successors []int
	for range 2 {
		require.NoError(t, syscall.Kill(before, syscall.SIGUSR2))
		pid := <-main
		require.NotEqual(t, before, pid)
		assert.Equal(t, os.Getpid(), parentOf(t, pid), "it is a child of the one before it, %d", before)
		testkit.Eventually(t, "it serves", func() bool { return p.serving() == pid })
		before, successors = pid, append(successors, pid)
	}
	thaw()
	require.NoError(t, <-done, "the call goes on in the first process")
	require.NoError(t, first.Wait())
	p.end()
	for _, pid := range successors {
		_, err := syscall.Wait4(pid, nil, 0, nil)
		require.NoError(t, err)
	}
}

func parentOf(t *testing.T, pid int) (parent int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(stat), ") ") // after the name
	var state string
	_, err = fmt.Sscan(rest, &state, &parent)
	require.NoError(t, err)
	return parent
}
