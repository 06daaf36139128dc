package limits

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// call is the memory for messages that one call of a client takes, without its request. A
// reply takes memory before it comes. When the reply is freed, the call keeps that memory for
// the reply that was made of it, until that one is on its way to the client, which may be long if
// the client reads nothing. At the end of the call its replies are gone, or belong to a part of
// criproxy that has its own bound, such as the flight recorder.
type call struct {
	memory *Memory
	client *Client // whose share it uses
	whole  bool    // its replies are a list, parts of which may stay until the call ends

	mu    sync.Mutex
	taken int64
	spare int64 // the part of taken whose messages were freed
	small int64 // bytes of small messages of streamed lists that are not taken yet
	over  bool  // the call has ended: later messages belong to criproxy itself, and do not count
}

// callKey is the key of the call in its context.
type callKey struct{}

// callContext is the context of a call, in which [callOf] finds it.
type callContext struct {
	context.Context
	call *call
}

func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c.call
	}
	return c.Context.Value(key)
}

// callOf returns the call of ctx, or nil for a call that criproxy makes itself.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// try takes n bytes if they are free now, or if the call has them to spare.
func (c *call) try(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return true
	}
	used := min(n, c.spare)
	if !c.memory.try(c.client, n-used) {
		return false
	}
	c.spare -= used
	c.taken += n - used
	return true
}

// took notes that n bytes were taken.
func (c *call) took(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		c.memory.release(c.client, n)
		return
	}
	c.taken += n
}

// free notes that a message of n bytes was freed. The call keeps the bytes to spare.
func (c *call) free(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spare += n
}

// keep takes n bytes until the call ends, if they are free now.
func (c *call) keep(ctx context.Context, n int64, what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return status.Error(codes.Canceled, "criproxy: the call has ended")
	case !c.memory.try(c.client, n):
		return c.memory.refuse(ctx, fmt.Sprintf("no memory for %d more bytes of %s", n, what))
	}
	c.taken += n
	return nil
}

// sent returns the memory of messages that are on their way.
func (c *call) sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spare > 0 && !c.whole {
		c.memory.release(c.client, c.spare)
		c.taken -= c.spare
		c.spare = 0
	}
}

// end returns all that the call has taken, and counts nothing of it any more.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.taken > 0 {
		c.memory.release(c.client, c.taken)
	}
}

// limitedStream is the stream of a call whose messages are counted.
type limitedStream struct {
	grpc.ServerStream
	ctx  callContext
	call call
}

func (s *limitedStream) Context() context.Context { return &s.ctx }

// RecvMsg receives a message. Its error for a request that is too long says what to do.
func (s *limitedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		return nil
	}
	before, after, tooLong := strings.Cut(status.Convert(err).Message(), "larger than max (")
	if !tooLong || status.Code(err) != codes.ResourceExhausted {
		return err
	}
	limit := s.call.memory.maxMessage
	if strings.Contains(before, "decompression") {
		return status.Errorf(codes.ResourceExhausted, "criproxy: the request is more than the limit of %d bytes when it is decompressed; raise -max-message-bytes", limit)
	}
	n, _, _ := strings.Cut(after, " ")
	return status.Errorf(codes.ResourceExhausted, "criproxy: the request is %s bytes, more than the limit of %d; raise -max-message-bytes", n, limit)
}

func (s *limitedStream) SendMsg(m any) error {
	defer s.call.sent()
	return s.ServerStream.SendMsg(m)
}

// Keep takes n bytes until the call of ctx ends, for an answer from a cache. It fails if they are
// not free now.
func Keep(ctx context.Context, n int) error {
	c := callOf(ctx)
	if c == nil || n < smallMessage {
		return nil
	}
	return c.keep(ctx, int64(n), "a list from the cache")
}

// Streamed takes n bytes until the call of ctx ends, for a message of a list that a runtime streams. The
// transport has counted all but small ones, which stay in memory as well until the list is complete. A wait
// for memory would make the runtime seem slow.
func Streamed(ctx context.Context, n int) error {
	c := callOf(ctx)
	if c == nil || n >= smallMessage {
		return nil
	}
	c.mu.Lock()
	c.small += int64(n)
	all := c.small
	if all >= smallMessage {
		c.small = 0
	}
	c.mu.Unlock()
	if all < smallMessage {
		return nil
	}
	return c.keep(ctx, all, "a list that a runtime streams")
}
