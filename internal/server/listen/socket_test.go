package listen

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// meetingListener is a listener whose Close waits until as many calls of it wait as missing says,
// and then returns to all of them in the same moment.
type meetingListener struct {
	net.Listener
	missing *atomic.Int64
}

func (l meetingListener) Close() error {
	for l.missing.Add(-1); l.missing.Load() > 0; {
		runtime.Gosched() // a goroutine that waits for a lock would be woken too late
	}
	return nil
}

// A reload that removes a listener closes its socket, and gRPC, which notices, closes it at the same
// time. The two calls used to panic, which ended the process.
func TestASocketMayBeClosedByTwoAtOnce(t *testing.T) {
	for range 50000 {
		var missing atomic.Int64
		missing.Store(2)
		s := New(meetingListener{missing: &missing}, config.Listener{})
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { assert.NotPanics(t, func() { _ = s.Close() }) })
		}
		both.Wait()
		if t.Failed() {
			return
		}
	}
}

// A command that gets the File of a net.Listener makes the socket a blocking one for every process that has it.
func TestASocketThatACommandGetsDoesNotBlock(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s"))
	require.NoError(t, err)
	defer l.Close()
	f, err := FileOf(l)
	require.NoError(t, err)
	defer f.Close()
	cmd := bounded.Command(t, "true")
	cmd.ExtraFiles = []*os.File{f}
	require.NoError(t, cmd.Run())
	raw, err := l.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		assert.NoError(t, err)
		assert.NotZero(t, flags&unix.O_NONBLOCK)
	}))
}
