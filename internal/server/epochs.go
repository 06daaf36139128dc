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

// epochs count calls, so that a backend that a reload has removed can be closed when the last call
// that may use it has ended. An epoch is the time between two reloads that took backends away. A call belongs to the epoch in
// which it began, and uses the director's table of that epoch or a newer one. Endless streams belong to no epoch: they move to
// the newest table, and end when the process stops.
//
// An epoch has ended when all its calls have, and those of all epochs before it, because a call of an earlier one may use a
// backend that this one still has. So epochs end in order.
type epochs struct {
	// New sets these before the first call.
	endless  func(method string) bool
	patience time.Duration // see [Machine.Patience]

	mu    sync.Mutex // guards the fields below
	now   int        // the number of the current epoch
	calls map[*callUnderWay]struct{}
	past  []epoch // that have not ended, the oldest first

	stopping context.Context // ends, with a cause, to end endless streams
	stop     context.CancelCauseFunc
}

// An epoch is one that is not the current one.
type epoch struct {
	number int
	ended  chan struct{} // closed when all calls of this epoch and of those before have ended
}

// noEpoch is the number that endless streams have in place of that of an epoch.
const noEpoch = math.MaxInt

// newEpochs returns epochs of which the first one has begun.
func newEpochs() *epochs {
	es := &epochs{endless: func(string) bool { return false }, calls: map[*callUnderWay]struct{}{}}
	es.stopping, es.stop = context.WithCancelCause(context.Background())
	return es
}

// next begins an epoch, and returns the one before it, which ends as soon as it and those before it have no calls.
func (es *epochs) next() epoch {
	es.mu.Lock()
	defer es.mu.Unlock()
	before := epoch{es.now, make(chan struct{})}
	es.now++
	es.past = append(es.past, before)
	es.end()
	return before
}

// end ends the epochs that have no calls. es.mu is held.
func (es *epochs) end() {
	if len(es.past) == 0 {
		return
	}
	oldest := es.now
	for c := range es.calls {
		oldest = min(oldest, c.epoch)
	}
	for len(es.past) > 0 && es.past[0].number < oldest {
		close(es.past[0].ended)
		es.past = es.past[1:]
	}
}

// endStreams ends all endless streams with Unavailable and the message why. From then on, new ones
// end at once. A client opens the stream again on its next connection, to the next process.
func (es *epochs) endStreams(why string) { es.stop(status.Error(codes.Unavailable, why)) }

// enter counts a call. The caller passes it to leave when it ends.
func (es *epochs) enter(call *callUnderWay, endless bool) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.calls[call] = struct{}{}
	call.epoch = es.now
	if endless {
		call.epoch = noEpoch
	}
}

// leave counts a call that has ended.
func (es *epochs) leave(call *callUnderWay) {
	es.mu.Lock()
	defer es.mu.Unlock()
	delete(es.calls, call)
	if call.epoch < es.now { // no other call keeps an epoch from ending
		es.end()
	}
}

// intercept is an interceptor that counts each call. It keeps the request of one whose client waits longer than most, and gives
// an endless stream a context that ends with endStreams; the client then gets the reason of endStreams, and not Canceled.
func (es *epochs) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	endless := es.endless(info.FullMethod) || info.FullMethod == healthgrpc.Health_Watch_FullMethodName
	call := &callUnderWay{method: info.FullMethod, peer: listen.PeerOf(ss.Context()), since: time.Now()}
	if until, ok := ss.Context().Deadline(); ok && !endless && until.Sub(call.since) > es.patience {
		call.until = until
		ss = &longStream{ServerStream: ss, epochs: es, call: call}
	}
	es.enter(call, endless)
	defer es.leave(call)
	if !endless {
		return handler(srv, ss)
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(es.stopping, func() { cancel(context.Cause(es.stopping)) })()
	err := handler(srv, &streamWithContext{ss, ctx})
	if cause := context.Cause(es.stopping); cause != nil && ss.Context().Err() == nil && err != nil {
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
