package transport

import (
	"context"
	"sync/atomic"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
)

// A Budget is the memory for messages that do not arrive in one piece. The transport asks it when
// the beginning of such a message has arrived, which says how long the message is; until there is
// memory, the peer can send no more of it than a window holds. The context is the call's. Several
// goroutines may call the methods at once. TryReserve and Release must not wait, and must not call
// the transport.
type Budget interface {
	// TryReserve reserves n bytes if they are free now.
	TryReserve(ctx context.Context, n int) bool
	// Reserve waits until n bytes are free and reserves them. Its error is a gRPC status, and
	// ends the call.
	Reserve(ctx context.Context, n int) error
	// Release gives n bytes back. The transport calls it when the frame with the message is
	// freed, or garbage collected if it never is.
	Release(ctx context.Context, n int)
}

// A reservation is the memory reserved for one message, or for a wide window. It may be released several times, by any
// goroutine, and gives the memory back once: a message is freed by its receiver, and the end of its call frees what no
// receiver has freed.
type reservation struct {
	budget Budget
	ctx    context.Context
	n      int
	over   atomic.Bool
}

// release gives the memory back, once. It does nothing on a nil reservation.
func (r *reservation) release() {
	if r != nil && !r.over.Swap(true) {
		r.budget.Release(r.ctx, r.n)
	}
}

// released reports whether the memory was given back.
func (r *reservation) released() bool { return r.over.Load() }

// unlimited is the budget of a server or client whose configuration has none.
type unlimited struct{}

func (unlimited) TryReserve(context.Context, int) bool { return true }
func (unlimited) Reserve(context.Context, int) error   { return nil }
func (unlimited) Release(context.Context, int)         {}

// Count reserves the memory of f, a message that has been received in one piece, until f is freed. It
// is for receivers that do not know how long a message is before they have all of it. A nil budget has
// room for everything. If there is no memory Count frees f.
func Count(ctx context.Context, budget Budget, f *codec.Frame) error {
	if budget == nil {
		return nil
	}
	n := f.Len()
	if err := budget.Reserve(ctx, n); err != nil {
		f.Free()
		return err
	}
	*f = *codec.FrameOfBuffers(buffers.OnFree(f.Buffers(), func() { budget.Release(ctx, n) }))
	return nil
}
