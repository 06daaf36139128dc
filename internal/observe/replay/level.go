package replay

import (
	"cmp"
	"context"
	"sync"
)

// A level only rises, and callers can wait until it has. It is safe for concurrent use.
type level[T cmp.Ordered] struct {
	mu    sync.Mutex
	at    T
	risen chan struct{} // closed when it rises
}

func newLevel[T cmp.Ordered](at T) *level[T] { return &level[T]{at: at, risen: make(chan struct{})} }

// raise makes the level at least to.
func (l *level[T]) raise(to T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to > l.at {
		l.at = to
		close(l.risen)
		l.risen = make(chan struct{})
	}
}

func (l *level[T]) now() (at T, risen <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at, l.risen
}

// reach waits until the level is at least at, or returns ctx's error.
func (l *level[T]) reach(ctx context.Context, at T) error {
	for {
		now, risen := l.now()
		if now >= at {
			return nil
		}
		select {
		case <-risen:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
