package main

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
func (p *peerInfo) shares(m *memory) shares {
	p.once.Do(func() {
		p.parts = shares{semaphore.NewWeighted(m.total / 2), m.free}
		if s := p.socket; s != nil && !s.main.Load() {
			s.once.Do(func() { s.bytes = semaphore.NewWeighted(m.total / leastMessages) })
			p.parts = shares{s.bytes, m.side, m.free}
		}
	})
	return p.parts
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
