package server

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// Package director tests panics in its own calls.
func TestAPanicIsInternalCountedAndLoggedWithItsStack(t *testing.T) {
	recovery.Notify(logPanic)
	before, logged := recovery.Count(), len(testkit.LogLines("/x.Y/Z", "a panic ended one call", "panics_test.go"))
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s.sock"))
	require.NoError(t, err)
	s := transport.NewServer(transport.ServerConfig{Handler: func(any, grpc.ServerStream) error { panic("first") }})
	go s.Serve(l, nil) // ends with the test
	t.Cleanup(s.Stop)
	err = testkit.Dialed(t, l.Addr().String()).Invoke(t.Context(), "/x.Y/Z", &codec.Frame{}, &codec.Frame{}, grpc.ForceCodecV2(codec.Raw))
	testkit.AssertCode(t, codes.Internal, err)
	assert.Equal(t, before+1, recovery.Count())
	assert.Len(t, testkit.LogLines("/x.Y/Z", "a panic ended one call", "panics_test.go"), logged+1)
}

// What transport reports, and a panic in its code, are failures of the own data path; a panic elsewhere is none.
func TestThreeReportsOfTheOwnPathAreLoggedWithTheCure(t *testing.T) {
	const in, elsewhere = "github.com/criproxy/criproxy/internal/transport.(*reader).read(0x1)\n\tfile.go:60 +0x117\n", "github.com/criproxy/criproxy/internal/server/limits.(*Client).shares(0x1)\n\tfile.go:17 +0xe\n"
	panics := func(where string) { // where code of transport has called what panicked
		logPanic("a test", "out of luck", []byte("goroutine 7 [running]:\nruntime/debug.Stack()\n\truntime/debug/stack.go:26 +0x5e\npanic({0xefd340?, 0x19d8920?})\n\truntime/panic.go:860 +0x13a\nruntime.panicmem(...)\n\truntime/panic.go:262\n"+where+in))
	}
	cures := func() int {
		return len(testkit.LogLines("own data path failed three times within a minute", "set dataPath to grpc"))
	}
	before := cures()
	ownPath = failures{}
	t.Cleanup(func() { ownPath = failures{} })
	for range 3 {
		panics(elsewhere)
	}
	logBlame(`PROTOCOL_ERROR "a test"`)
	panics("")
	assert.Equal(t, before, cures(), "two failures")
	logBlame(`PROTOCOL_ERROR "a test"`)
	assert.Equal(t, before+1, cures(), "three")
	logBlame(`PROTOCOL_ERROR "a test"`)
	assert.Equal(t, before+1, cures(), "once is enough")
}

// at is a time that is n seconds into the story of a test.
func at(n int) time.Time { return time.Unix(1_000_000_000+int64(n), 0).UTC() }

func TestThreeCrashesWithinAMinuteAreACrashLoop(t *testing.T) {
	story := func(changes ...capture.Change) (c crashes) {
		for _, change := range changes {
			c.follow(&change)
		}
		return c
	}
	serves := func(n int) capture.Change { return capture.Change{What: capture.Serving, Time: at(n)} }
	stops := capture.Change{What: capture.Stopped}
	takesOver := capture.Change{What: capture.HandedOver}

	c := story(serves(0), serves(10), serves(20))
	assert.True(t, c.begin(at(30)), "after the third crash")
	c = story(serves(0), serves(10))
	assert.False(t, c.begin(at(20)), "after the second")
	c = story(serves(0), serves(10), serves(20))
	assert.False(t, c.begin(at(71)), "61s after the restart that followed the first")
	c = story(serves(0), serves(10), serves(20), stops)
	assert.False(t, c.begin(at(30)), "it was stopped")
	c = story(serves(0), takesOver, serves(10), serves(20), takesOver)
	assert.True(t, c.begin(at(30)), "those that had taken over crashed")
	assert.False(t, new(crashes).begin(at(0)), "the first ever")
}

// The files of the state folder have what the processes before have told.
func TestACrashLoopIsLoggedWithItsCure(t *testing.T) {
	for path, logged := range map[string]int{config.OwnPath: 1, config.GRPCPath: 0} {
		before := len(testkit.LogLines("ended unasked three times", "dataPath to grpc"))
		n := newNode(t, func(c *config.Config) {
			c.DataPath = path
			makeStateDir(c)
			earlier := telemetry.NewChanges(&telemetry.Recording{}, c.StateDir)
			for range 3 {
				earlier.Add(capture.Change{What: capture.Serving, Time: time.Now()})
			}
			now := make(chan struct{})
			close(now)
			earlier.Keep(now)
		})
		changed(t, n.proxy, capture.Serving)
		assert.Len(t, testkit.LogLines("ended unasked three times", "dataPath to grpc"), before+logged, path)
	}
}
