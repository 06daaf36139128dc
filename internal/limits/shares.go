package limits

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// shares are what a message takes its memory from, each one a part of the next: what one
// connection may have, what its socket may have, what all sockets but the main one may have,
// and the whole. A connection of the main socket has the first and the last.
type shares []*semaphore.Weighted

// shares returns those of a connection: half of the memory, so that a client that reads nothing leaves
// something to the others. Who connects to another socket than the main one shares a quarter
// with who connects there too, and half with all who connect to such sockets.
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
