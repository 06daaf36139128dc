package limits

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/peer"
)

// Socket holds the limits and counters of a socket that clients connect to. The main one, to
// which kubelet connects, may take more than the others. The zero value is not the main one.
type Socket struct {
	Name     string // in errors
	Main     atomic.Bool
	MaxCalls atomic.Int64
	Calls    atomic.Int64 // under way

	once  sync.Once
	bytes *semaphore.Weighted // its share of the memory for messages; nil for the main one
}

// Client holds the limits of one connection of a client. It belongs to the peer of the connection, and is safe for concurrent
// use. The first message decides its shares.
type Client struct {
	Socket *Socket

	once  sync.Once
	parts shares // of the memory for messages

	refused atomic.Int64 // when a refused call was last shown, in Unix nanoseconds
}

// ShowsRefusal reports whether a refused call of the client is to be recorded: one in a second, so that a client that is refused
// all the time pushes nothing else out of the recorder.
func (c *Client) ShowsRefusal(now time.Time) bool {
	last := c.refused.Load()
	return now.UnixNano()-last >= int64(time.Second) && c.refused.CompareAndSwap(last, now.UnixNano())
}

// clientOf returns the client of a call, or nil for a call that criproxy makes itself.
func clientOf(ctx context.Context) *Client {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	client, ok := p.AuthInfo.(interface{ Limits() *Client })
	if !ok {
		return nil
	}
	return client.Limits()
}
