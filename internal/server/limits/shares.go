package limits

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// shares are the shares of the memory from which a message takes its memory. Each is a part of the
// next one, and the last one is all memory.
type shares []*semaphore.Weighted

// shares returns the shares of a connection. A connection of the main socket has up to half of the
// memory, so that a client that reads nothing leaves room for the others. The connections of another
// socket share a quarter, and those of all other sockets together half.
func (c *Client) shares(m *Memory) shares {
	c.once.Do(func() {
		c.parts = shares{semaphore.NewWeighted(m.total / 2), m.free}
		if s := c.Socket; s != nil && !s.Main.Load() {
			s.once.Do(func() { s.bytes = semaphore.NewWeighted(m.total / leastMessages) })
			c.parts = shares{s.bytes, m.side, m.free}
		}
	})
	return c.parts
}

// try takes n bytes if they are free.
func (s shares) try(n int64) bool {
	for i, part := range s {
		if !part.TryAcquire(n) {
			s[:i].release(n)
			return false
		}
	}
	return true
}

// take waits for n bytes until ctx ends.
func (s shares) take(ctx context.Context, n int64) error {
	for i, part := range s {
		if err := part.Acquire(ctx, n); err != nil {
			s[:i].release(n)
			return err
		}
	}
	return nil
}

func (s shares) release(n int64) {
	for _, part := range s {
		part.Release(n)
	}
}
