package transport

import (
	"context"
	"sync/atomic"
)

// A Budget is the memory for messages that do not come in one piece. The transport asks it
// when it knows how long such a message is and has as yet only its beginning; the sender
// cannot send more than a window of it before the memory is there. The context is that of
// the call. The methods are called by several goroutines at once; TryReserve and Release must
// neither wait nor call the transport.
type Budget interface {
	// TryReserve takes n bytes if they are free now.
	TryReserve(ctx context.Context, n int) bool
	// Reserve takes n bytes, and waits for them. An error is that of the call, as a status.
	Reserve(ctx context.Context, n int) error
	// Release gives n bytes back: the message has been sent, or it is not wanted. If the frame
	// with the message is never freed, Release is called when it is garbage collected.
	Release(ctx context.Context, n int)
}

// A reservation is memory that was taken for one message.
type reservation struct {
	budget Budget
	ctx    context.Context
	n      int
	over   atomic.Bool
}

// release gives the memory back, once. A nil reservation is none.
func (r *reservation) release() {
	if r != nil && !r.over.Swap(true) {
		r.budget.Release(r.ctx, r.n)
	}
}

func (r *reservation) released() bool { return r.over.Load() }

// unlimited is the budget of a server or client without one.
type unlimited struct{}

func (unlimited) TryReserve(context.Context, int) bool { return true }
func (unlimited) Reserve(context.Context, int) error   { return nil }
func (unlimited) Release(context.Context, int)         {}
