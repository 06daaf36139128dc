package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/server/listen"
)

// epochs count calls, so that a backend that a reload has removed can be closed when the last call
// that may use it has ended. A call belongs to the epoch in which it began, and uses the director's
// table of that epoch or a newer one. Endless streams belong to no epoch: they move to the newest
// table, and end when the process stops.
//
// The epochs are a chain from the oldest with a call to the current one. An epoch has ended when all its calls have, and those of
// all epochs before it, because a call of an earlier one may use a backend that this one still has. So epochs end in order.
type epochs struct {
	// New sets these before the first call.
	endless  func(method string) bool
	patience time.Duration // see [Machine.Patience]

	mu    sync.Mutex // guards the fields below
	now   *epoch
	calls map[*callUnderWay]struct{}

	stopping context.Context // ends, with a cause, to end endless streams
	stop     context.CancelCauseFunc
}

// An epoch is the time between two reloads that took backends away. epochs.mu guards it.
type epoch struct {
	number  int           // grows with each epoch
	calls   int           // calls under way, plus one while this is the current epoch
	waiting bool          // the epoch before it has not ended
	after   *epoch        // the next one; nil for the current epoch
	ended   chan struct{} // closed when all calls of this epoch and of those before have ended
}

// newEpochs returns epochs of which the first one has begun.
func newEpochs() *epochs {
	es := &epochs{now: newEpoch(0), endless: func(string) bool { return false }, calls: map[*callUnderWay]struct{}{}}
	es.stopping, es.stop = context.WithCancelCause(context.Background())
	return es
}

// newEpoch returns an epoch that begins now. It counts one call that never ends before the next epoch begins.
func newEpoch(number int) *epoch {
	return &epoch{number: number, calls: 1, waiting: number > 0, ended: make(chan struct{})}
}

// next begins an epoch, and returns the one before it, which ends as soon as it and those before it have no calls.
func (es *epochs) next() *epoch {
	es.mu.Lock()
	defer es.mu.Unlock()
	old := es.now
	es.now = newEpoch(old.number + 1)
	old.after = es.now
	old.leave()
	return old
}

// endStreams ends all endless streams with Unavailable and the message why. From then on, new ones
// end at once. A client opens the stream again on its next connection, to the next process.
func (es *epochs) endStreams(why string) { es.stop(status.Error(codes.Unavailable, why)) }

// leave removes a call, and ends the epoch if that was the last one, and the next epochs if they only waited for this one.
// epochs.mu is held.
func (e *epoch) leave() {
	e.calls--
	for ; e != nil && e.calls == 0 && !e.waiting; e = e.after {
		close(e.ended)
		e.after.waiting = false
	}
}

// enter counts a call. The caller passes it to leave when it ends.
func (es *epochs) enter(call *callUnderWay, endless bool) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.calls[call] = struct{}{}
	if !endless {
		call.epoch = es.now
		call.epoch.calls++
	}
}

// leave counts a call that has ended.
func (es *epochs) leave(call *callUnderWay) {
	es.mu.Lock()
	defer es.mu.Unlock()
	delete(es.calls, call)
	if call.epoch != nil {
		call.epoch.leave()
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
