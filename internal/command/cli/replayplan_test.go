package cli

import (
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A server that is not a fixture gets mutating calls only with -write. It was asked for a method of criproxy's own first, which
// a runtime logs as an error (issue 43, item 17).
func TestReplayWritesOnlyWhenAskedAndAsksNothingBefore(t *testing.T) {
	socket := filepath.Join(muxtest.Dir(t), "server.sock")
	var asked atomic.Int32
	muxtest.Serve(t, socket, func(string, grpc.ServerStream) error { asked.Add(1); return nil })
	const stop, list = "/runtime.v1.RuntimeService/StopContainer", "/runtime.v1.RuntimeService/ListContainers"
	plan := replayPlan{send: []*replay.Call{{Method: stop}, {Method: list}}}
	assert.ErrorContains(t, plan.allow(socket, io.Discard), "1 of 2 calls would change something")
	plan.write = true
	assert.NoError(t, plan.allow(socket, io.Discard))
	reads := replayPlan{send: []*replay.Call{{Method: list}}}
	assert.NoError(t, reads.allow(socket, io.Discard))
	assert.Zero(t, asked.Load())
}

// It said of each call that it failed, or that it would change something there (issue 43, item 17).
func TestReplaySaysThatNothingServesTheSocket(t *testing.T) {
	socket := filepath.Join(muxtest.Dir(t), "server.sock")
	for _, write := range []bool{false, true} {
		plan := replayPlan{write: write, send: []*replay.Call{{Method: "/runtime.v1.RuntimeService/StopContainer"}}}
		assert.EqualError(t, plan.allow(socket, io.Discard), "replay: there is no socket at "+socket+"; start the server that is to get the calls, such as a runtime or criproxy fixture, or correct -to")
	}
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	assert.ErrorContains(t, (&replayPlan{}).allow(socket, io.Discard), "replay: no process serves "+socket+";")
}

// The page shows a command that sends one call again, whatever became of it.
func TestReplaySendsOneCallByItsNumber(t *testing.T) {
	plan := replayPlan{call: 8}
	plan.choose([]*replay.Call{{ID: 7}, {ID: 8, Ended: true, Code: codes.Unavailable}})
	assert.Len(t, plan.send, 1)
	assert.Equal(t, uint64(8), plan.send[0].ID)
	assert.Zero(t, plan.leftOut)
}
