package daemon

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/listen"
)

// epochs count calls, so that what they use can be closed when the last call that may use it has
// ended. A call belongs to the epoch in which it began, and uses the table of that epoch or a
// newer one. Streams without an end belong to no epoch: they follow the table, and end when the
// process stops.
type epochs struct {
	endless func(method string) bool

	mu    sync.Mutex // guards what follows
	now   *epoch
	calls map[*callUnderWay]struct{}

	stopping context.Context // ends, with a cause, when endless streams are to end
	stop     context.CancelCauseFunc
}

type epoch struct {
	calls   int           // under way, and one for being the current generation
	waiting bool          // for the generation before to end
	after   *epoch        // nil for the current one
	ended   chan struct{} // closed when all calls of this generation and those before have ended
}

func newEpochs() *epochs {
	gs := &epochs{now: newEpoch(false), endless: func(string) bool { return false }, calls: map[*callUnderWay]struct{}{}}
	gs.stopping, gs.stop = context.WithCancelCause(context.Background())
	return gs
}

func newEpoch(waiting bool) *epoch {
	return &epoch{calls: 1, waiting: waiting, ended: make(chan struct{})}
}

// next begins an epoch. The channel is closed when all calls that began earlier have ended.
func (gs *epochs) next() <-chan struct{} {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	old := gs.now
	gs.now = newEpoch(true)
	old.after = gs.now
	old.leave()
	return old.ended
}

// endStreams ends the streams without an end, with Unavailable and why. No such stream can begin
// any more.
func (gs *epochs) endStreams(why string) { gs.stop(status.Error(codes.Unavailable, why)) }

// leave removes a call. The lock is held.
func (g *epoch) leave() {
	g.calls--
	for ; g != nil && g.calls == 0 && !g.waiting; g = g.after {
		close(g.ended)
		g.after.waiting = false
	}
}

// begin counts a call until the caller calls the function that it returns.
func (gs *epochs) begin() func() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.now
	g.calls++
	return func() {
		gs.mu.Lock()
		defer gs.mu.Unlock()
		g.leave()
	}
}

// note lists a call as under way until the caller calls the function that it returns.
func (gs *epochs) note(call *callUnderWay) func() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.calls[call] = struct{}{}
	return func() {
		gs.mu.Lock()
		defer gs.mu.Unlock()
		delete(gs.calls, call)
	}
}

// intercept is an interceptor that counts each call.
func (gs *epochs) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	defer gs.note(&callUnderWay{info.FullMethod, listen.PeerOf(ss.Context()), time.Now()})()
	if !gs.endless(info.FullMethod) && info.FullMethod != healthgrpc.Health_Watch_FullMethodName {
		defer gs.begin()()
		return handler(srv, ss)
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(gs.stopping, func() { cancel(context.Cause(gs.stopping)) })()
	err := handler(srv, &streamWithContext{ss, ctx})
	if cause := context.Cause(gs.stopping); cause != nil && ss.Context().Err() == nil && err != nil {
		return cause
	}
	return err
}

// streamWithContext is a stream with another context.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }
