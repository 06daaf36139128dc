package limits

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director"
)

// reservation is the memory that one call has taken. It is released once, when the call and all
// frames of it that are not on the wire yet have ended. The goroutines of grpc-proxy outlive the
// call: what they take later is released at once.
//
// Room for the replies is reserved before the call begins, as far as their length is known.
// While nothing comes, for example from a runtime that hangs, the call releases that room. When
// a reply begins with its header, the call reserves room again, and reads the rest once it has
// it.
type reservation struct {
	memory *Memory
	client *Client // against whose share it counts
	method string

	asking sync.Mutex // held while room waits: one asks for all replies of the call

	mu       sync.Mutex
	n        int64
	owed     int64       // what has come without room for it
	promised int64       // of n, for replies
	coming   int         // replies of runtimes that have begun
	came     int64       // bytes of those that have come
	sent     int64       // of replies to the client, the small ones not counted
	lull     *time.Timer // runs while nothing comes; nil before anything was promised
	shares   int         // of it: by the call, and by frames that are not on the wire yet
	over     bool        // all was given back, and n and owed stay zero
}

type reservationKey struct{}

// reservationOf returns the reservation of the call of ctx, nil for a call that criproxy makes
// itself.
func reservationOf(ctx context.Context) *reservation {
	h, _ := ctx.Value(reservationKey{}).(*reservation)
	return h
}

// take takes n bytes more. It waits for them if it has to.
func (h *reservation) take(ctx context.Context, n int64) error {
	return h.takeWithin(ctx, n, MemoryWait)
}

func (h *reservation) takeWithin(ctx context.Context, n int64, wait time.Duration) error {
	if n < smallMessage {
		return nil
	}
	if parts := h.client.shares(h.memory); !parts.try(n) {
		within, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if parts.take(within, n) != nil {
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			return h.refuse(fmt.Sprintf("no memory for a message of %d bytes came free within %s", n, wait))
		}
	}
	h.memory.taken.Add(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		h.release(n)
		return h.ended()
	}
	h.n += n
	return nil
}

// ended is the error for a call that asks for memory after its end.
func (h *reservation) ended() error {
	return status.Errorf(codes.Canceled, "criproxy: %s: the call has ended", h.method)
}

// refuse is the error for a call for which there is no room.
func (h *reservation) refuse(why string) error {
	h.memory.refused.Add(1)
	return &refusal{status.Newf(codes.ResourceExhausted, "criproxy: %s: %s: the messages of all calls under way take %d of %d; read the replies, make fewer calls at once, or raise GOMEMLIMIT",
		h.method, why, h.memory.taken.Load(), h.memory.total)}
}

// A refusal is the status of a call for which this process has no memory. Ours distinguishes it
// from a status of the runtime: the runtime is not at fault.
type refusal struct{ *status.Status }

func (r *refusal) Error() string              { return r.Err().Error() }
func (r *refusal) GRPCStatus() *status.Status { return r.Status }
func (r *refusal) Ours() bool                 { return true }

// mayBeLong reports whether the call should reserve room for the replies of runtimes.
func (h *reservation) mayBeLong() bool {
	_, most := h.memory.Expect(h.method)
	return most > 0
}

// begin reserves room for the expected replies of the call.
func (h *reservation) begin(ctx context.Context) error {
	n, _ := h.memory.Expect(h.method)
	if err := h.take(ctx, n); err != nil || n == 0 {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.promised = n
	h.pauseLocked()
	return nil
}

// room waits until there is room for the reply of a runtime that has begun to answer. A call
// that is over always has room: its reply is dropped.
func (h *reservation) room(ctx context.Context) error {
	h.asking.Lock()
	defer h.asking.Unlock()
	_, most := h.memory.Expect(h.method)
	h.mu.Lock()
	h.coming++
	more := max(most, h.came) - h.promised
	over := h.over
	h.mu.Unlock()
	if over || more < smallMessage {
		return nil
	}
	err := h.takeWithin(ctx, more, time.Duration(h.memory.replyWait.Load()))
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
		return nil
	case err != nil:
		h.coming--
		return err
	}
	h.promised += more
	return nil
}

// arrived notes a reply of n bytes that had room, or none if n is 0.
func (h *reservation) arrived(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.coming--
	h.came += n
	h.coverLocked(h.came)
	h.pauseLocked()
}

// pauseLocked starts the time after which the reserved room is released if nothing comes.
func (h *reservation) pauseLocked() {
	switch {
	case h.over || h.promised == 0:
	case h.lull == nil:
		h.lull = time.AfterFunc(lullTime, h.nothingComes)
	default:
		h.lull.Reset(lullTime)
	}
}

// nothingComes releases the reserved room, except for what has come and what a runtime may send
// before it is read.
func (h *reservation) nothingComes() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.coming == 0 {
		n, _ := h.memory.Expect(h.method)
		h.keepLocked(h.came + min(max(n-h.came, 0), director.StreamWindow))
	}
}

// keepLocked releases reserved room beyond n bytes.
func (h *reservation) keepLocked(n int64) {
	n = max(n, h.sent)
	if rest := h.promised - n; rest >= smallMessage && !h.over {
		h.promised = n
		h.n -= rest
		h.release(rest)
	}
}

// coverLocked takes what n bytes of replies need beyond the reserved room. The replies are here
// already: without room they become debt.
func (h *reservation) coverLocked(n int64) {
	more := n - h.promised
	if more < smallMessage || h.over {
		return // the reply is dropped
	}
	h.promised = n
	if !h.client.shares(h.memory).try(more) {
		h.client.debt.add(more)
		h.owed += more
		return
	}
	h.memory.taken.Add(more)
	h.n += more
}

// sends notes n bytes more of replies to the client. When the last of them is sent all replies
// of runtimes are here.
func (h *reservation) sends(n int64) {
	if n < smallMessage {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent += n
	h.coverLocked(h.sent)
	if h.coming == 0 {
		h.keepLocked(h.came)
	}
}

// keeps takes room for n bytes of a streamed list, beyond what was expected. The call keeps the
// whole list until its end has come. keeps does not wait: the time of a list is the runtime's.
func (h *reservation) keeps(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return h.ended()
	}
	h.came += n
	h.pauseLocked()
	more := h.came - h.promised
	if more <= 0 {
		return nil
	}
	more = max(more, smallMessage)
	if !h.client.shares(h.memory).try(more) {
		return h.refuse(fmt.Sprintf("no memory for a list of more than %d bytes, which a runtime streams", h.came))
	}
	h.memory.taken.Add(more)
	h.n += more
	h.promised += more
	return nil
}

// give releases n bytes before the call ends.
func (h *reservation) give(n int64) {
	if n < smallMessage {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return // with all the rest
	}
	h.n -= n
	h.release(n)
}

func (h *reservation) release(n int64) {
	h.memory.taken.Add(-n)
	h.client.shares(h.memory).release(n)
}

// share keeps the reservation until the caller calls the function that it returns.
func (h *reservation) share() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shares++
	return h.done
}

func (h *reservation) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shares--; h.shares > 0 {
		return
	}
	h.over = true
	if h.lull != nil {
		h.lull.Stop()
	}
	if h.n > 0 {
		h.release(h.n)
		h.n = 0
	}
	if h.owed > 0 {
		h.client.debt.pay(h.owed)
		h.owed = 0
	}
}
