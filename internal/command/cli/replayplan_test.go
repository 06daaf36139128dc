package cli

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A server that is not a fixture gets mutating calls only with -write.
func TestReplayWritesOnlyWhenAsked(t *testing.T) {
	socket := filepath.Join(muxtest.Dir(t), "server.sock")
	muxtest.Serve(t, socket, func(string, grpc.ServerStream) error { return nil })
	conn := muxtest.Connect(t, socket)
	const stop, list = "/runtime.v1.RuntimeService/StopContainer", "/runtime.v1.RuntimeService/ListContainers"
	plan := replayPlan{send: []*replay.Call{{Method: stop}, {Method: list}}}
	assert.ErrorContains(t, plan.allow(t.Context(), conn, socket, io.Discard), "1 of 2 calls would change something")
	plan.write = true
	assert.NoError(t, plan.allow(t.Context(), conn, socket, io.Discard))
	reads := replayPlan{send: []*replay.Call{{Method: list}}}
	assert.NoError(t, reads.allow(t.Context(), conn, socket, io.Discard))
}

// The page shows a command that sends one call again, whatever became of it.
func TestReplaySendsOneCallByItsNumber(t *testing.T) {
	plan := replayPlan{call: 8}
	plan.choose([]*replay.Call{{ID: 7}, {ID: 8, Ended: true, Code: codes.Unavailable}})
	assert.Len(t, plan.send, 1)
	assert.Equal(t, uint64(8), plan.send[0].ID)
	assert.Zero(t, plan.leftOut)
}
