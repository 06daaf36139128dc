package transport

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// sockets returns the two ends of a unix connection. The first is a [socket], and so is the second
// if both is set.
func sockets(t testing.TB, both bool) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s"))
	require.NoError(t, err)
	defer l.Close()
	dialed, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	ours = ownSocket(dialed)
	require.IsType(t, &socket{}, ours)
	if both {
		accepted = ownSocket(accepted)
	}
	t.Cleanup(func() {
		_ = ours.Close() // the test may have
		_ = accepted.Close()
	})
	return ours, accepted
}

func TestASocketIsAConnection(t *testing.T) {
	for name, both := range map[string]bool{"with one of its kind": true, "with one of Go's": false} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (ours, theirs net.Conn, stop func(), err error) {
				ours, theirs = sockets(t, both)
				return ours, theirs, func() { _, _ = ours.Close(), theirs.Close() }, nil
			})
		})
	}
}

func TestASocketWaitsForRoom(t *testing.T) {
	ours, theirs := sockets(t, false)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB, more than the kernel holds
	done := make(chan error, 1)
	go func() {
		_, err := ours.Write(sent)
		done <- err
		done <- ours.(*socket).CloseWrite()
	}()
	got, err := io.ReadAll(theirs)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(sent, got))
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	_, err = theirs.Write([]byte("and back"))
	require.NoError(t, err)
	require.NoError(t, theirs.Close())
	got, err = io.ReadAll(ours)
	require.NoError(t, err)
	assert.Equal(t, "and back", string(got), "the input before the end, and the end")
}

func TestASocketReadsEarlierInput(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s"))
	require.NoError(t, err)
	defer l.Close()
	theirs, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	_, err = theirs.Write([]byte("early"))
	require.NoError(t, err)
	require.NoError(t, theirs.Close())
	accepted, err := l.Accept()
	require.NoError(t, err)
	ours := ownSocket(accepted)
	defer ours.Close()
	got, err := io.ReadAll(ours)
	require.NoError(t, err)
	assert.Equal(t, "early", string(got))
}

func TestAClosedSocketEndsItsReader(t *testing.T) {
	ours, _ := sockets(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		_, err := ours.Read(make([]byte, 1))
		assert.ErrorIs(t, err, net.ErrClosed)
	}()
	require.NoError(t, ours.Close())
	<-ctx.Done()
	assert.ErrorIs(t, ours.Close(), net.ErrClosed)
	_, err := ours.Write([]byte("x"))
	assert.ErrorIs(t, err, net.ErrClosed)
}

// A socket sometimes lost the end of its input, if input and end arrived just after the reader had
// found nothing.
func TestASocketNeverMissesTheEnd(t *testing.T) {
	for range 300 {
		ours, theirs := sockets(t, false)
		got := make(chan string, 1)
		go func() {
			b, err := io.ReadAll(ours)
			assert.NoError(t, err)
			got <- string(b)
		}()
		_, err := theirs.Write([]byte("all"))
		require.NoError(t, err)
		require.NoError(t, theirs.(*net.UnixConn).CloseWrite())
		require.Equal(t, "all", <-got)
		require.NoError(t, ours.Close())
		require.NoError(t, theirs.Close())
	}
}

func TestAnEmptyReadDoesNotUndoTheEnd(t *testing.T) {
	ours, theirs := sockets(t, false)
	s := ours.(*socket)
	s.in.over.Store(true) // as if the poller had noticed it while the reader found nothing
	s.in.may.Store(true)
	got := make(chan string, 1)
	go func() {
		b := make([]byte, 10)
		n, err := ours.Read(b)
		assert.NoError(t, err)
		got <- string(b[:n])
	}()
	for s.in.may.Load() { // until Read has looked
		runtime.Gosched()
	}
	_, err := theirs.Write([]byte("x"))
	require.NoError(t, err)
	require.Equal(t, "x", <-got)
	assert.True(t, s.in.over.Load(), "no other event announces the end")
}

func TestTheEndReachesAllReaders(t *testing.T) {
	for range 50 {
		ours, theirs := sockets(t, false)
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				_, err := ours.Read(make([]byte, 1))
				assert.ErrorIs(t, err, io.EOF)
			})
		}
		runtime.Gosched() // most of them wait
		require.NoError(t, theirs.Close())
		readers.Wait()
	}
}

// A writer that got room consumed the event for another writer, which then waited for ever.
func TestWritersTakeTurns(t *testing.T) {
	for range 20 {
		ours, theirs := sockets(t, false)
		const each = 1 << 20 // more than the kernel holds
		var writers sync.WaitGroup
		for _, what := range []string{"a", "b"} {
			writers.Go(func() {
				_, err := ours.Write(bytes.Repeat([]byte(what), each))
				assert.NoError(t, err)
			})
		}
		got := make([]byte, 2*each)
		_, err := io.ReadFull(theirs, got)
		require.NoError(t, err)
		writers.Wait()
		for _, half := range [][]byte{got[:each], got[each:]} {
			require.Equal(t, each, bytes.Count(half, half[:1]), "the writes are mixed")
		}
	}
}

// Deadlines used the wall clock. When an administrator set the clock, a deadline passed at once, or
// never.
func TestSettingTheClockMovesNoDeadline(t *testing.T) {
	ours, theirs := sockets(t, false)
	after := func(d, set time.Duration) time.Time { // a deadline, if the wall clock is then set forward by set
		at := time.Now().Add(d)
		*(*uint64)(unsafe.Pointer(&at)) -= uint64(set/time.Second) << 30 // the seconds of its wall clock
		require.InDelta(t, d, time.Until(at), float64(time.Minute))
		return at
	}
	_, err := theirs.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, ours.SetDeadline(after(time.Hour, 2*time.Hour)))
	_, err = ours.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, ours.SetDeadline(after(time.Millisecond, -time.Hour)))
	_, err = ours.Read(make([]byte, 1))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, ours.SetDeadline(time.Now().Add(math.MaxInt64)))
	_, err = ours.Write([]byte("x"))
	assert.NoError(t, err, "a deadline that is far away has passed")
}
