package server

import (
	"context"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/server/listen"
)

// callGroups count calls, so that a backend that a reload has removed can be closed when the last call that may use it has
// ended. A group is the calls that began between two reloads that took backends away; they use the director's table of that
// time or a newer one. Endless streams belong to no group: they move to the newest table, and end when the process stops.
//
// A group has ended when all its calls have, and those of all groups before it, because a call of an earlier one may use a
// backend that this one still has. So groups end in order.
type callGroups struct {
	// New sets these before the first call.
	endless  func(method string) bool
	patience time.Duration // see [Machine.Patience]

	mu    sync.Mutex // guards the fields below
	now   int        // the number of the current group
	calls map[*callUnderWay]struct{}
	past  []callGroup // that have not ended, the oldest first

	stopping context.Context // ends, with a cause, to end endless streams
	stop     context.CancelCauseFunc
}

// A callGroup is a group that is not the current one.
type callGroup struct {
	number int
	ended  chan struct{} // closed when all calls of this group and of those before have ended
}

// noGroup is the number that endless streams have in place of a group's.
const noGroup = math.MaxInt

// newCallGroups returns callGroups whose first group has begun.
func newCallGroups() *callGroups {
	gs := &callGroups{endless: func(string) bool { return false }, calls: map[*callUnderWay]struct{}{}}
	gs.stopping, gs.stop = context.WithCancelCause(context.Background())
	return gs
}

// next begins a group, and returns the one before it, which ends as soon as it and those before it have no calls.
func (gs *callGroups) next() callGroup {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	before := callGroup{gs.now, make(chan struct{})}
	gs.now++
	gs.past = append(gs.past, before)
	gs.end()
	return before
}

// end ends the groups that have no calls. gs.mu is held.
func (gs *callGroups) end() {
	if len(gs.past) == 0 {
		return
	}
	oldest := gs.now
	for c := range gs.calls {
		oldest = min(oldest, c.group)
	}
	for len(gs.past) > 0 && gs.past[0].number < oldest {
		close(gs.past[0].ended)
		gs.past = gs.past[1:]
	}
}

// endStreams ends all endless streams with Unavailable and the message why. From then on, new ones
// end at once. A client opens the stream again on its next connection, to the next process.
func (gs *callGroups) endStreams(why string) { gs.stop(status.Error(codes.Unavailable, why)) }

// enter counts a call. The caller passes it to leave when it ends.
func (gs *callGroups) enter(call *callUnderWay, endless bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.calls[call] = struct{}{}
	call.group = gs.now
	if endless {
		call.group = noGroup
	}
}

// leave counts a call that has ended.
func (gs *callGroups) leave(call *callUnderWay) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	delete(gs.calls, call)
	if call.group < gs.now { // no other call keeps a group from ending
		gs.end()
	}
}

// intercept is an interceptor that counts each call. It keeps the request of one whose client waits longer than most, and gives
// an endless stream a context that ends with endStreams; the client then gets the reason of endStreams, and not Canceled.
func (gs *callGroups) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	endless := gs.endless(info.FullMethod) || info.FullMethod == healthgrpc.Health_Watch_FullMethodName
	call := &callUnderWay{method: info.FullMethod, peer: listen.PeerOf(ss.Context()), since: time.Now()}
	if until, ok := ss.Context().Deadline(); ok && !endless && until.Sub(call.since) > gs.patience {
		call.until = until
		ss = &longStream{ServerStream: ss, groups: gs, call: call}
	}
	gs.enter(call, endless)
	defer gs.leave(call)
	if !endless {
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

// Context returns the other context.
func (s *streamWithContext) Context() context.Context { return s.ctx }
