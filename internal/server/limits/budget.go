package limits

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The transport reserves memory for each message that is longer than a window, on both sides:
// before a request of a client comes, and before the reply of a backend to a call of a client.
// Calls that criproxy makes itself are not counted: they determine the state of the backends.

// TryReserve takes n bytes for a message of the call of ctx, if they are free now.
func (m *Memory) TryReserve(ctx context.Context, n int) bool {
	if n < smallMessage {
		return true
	}
	if c := callOf(ctx); c != nil {
		return c.try(int64(n))
	}
	client := clientOf(ctx)
	return client == nil || m.try(client, int64(n))
}

// Reserve waits for n bytes, and takes them for a message of the call of ctx.
func (m *Memory) Reserve(ctx context.Context, n int) error {
	if m.TryReserve(ctx, n) {
		return nil
	}
	c, wait := callOf(ctx), MemoryWait
	if c != nil && c.whole {
		wait = time.Duration(m.replyWait.Load())
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if clientOf(ctx).shares(m).take(within, int64(n)) == nil {
		m.taken.Add(int64(n))
		if c != nil {
			c.took(int64(n))
		}
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return m.refuse(ctx, fmt.Sprintf("no memory for a message of %d bytes became free within %s", n, wait))
}

// Release returns n bytes that were taken for a message of the call of ctx.
func (m *Memory) Release(ctx context.Context, n int) {
	if n < smallMessage {
		return
	}
	if c := callOf(ctx); c != nil {
		c.free(int64(n))
	} else if client := clientOf(ctx); client != nil {
		m.release(client, int64(n))
	}
}

func (m *Memory) try(client *Client, n int64) bool {
	if !client.shares(m).try(n) {
		return false
	}
	m.taken.Add(n)
	return true
}

func (m *Memory) release(client *Client, n int64) {
	m.taken.Add(-n)
	client.shares(m).release(n)
}

// refuse returns the error of a call for which there is no memory, and counts it.
func (m *Memory) refuse(ctx context.Context, why string) error {
	m.refused.Add(1)
	method, _ := grpc.Method(ctx)
	return refuse("criproxy: %s: %s: the messages of all calls under way take %d of %d; read the replies, make fewer calls at once, or raise GOMEMLIMIT",
		method, why, m.taken.Load(), m.total)
}

// A refusal is the status of a call that a limit of this process refuses. Ours distinguishes it from a status of the runtime:
// the runtime is not at fault.
type refusal struct{ *status.Status }

func refuse(format string, args ...any) error {
	return &refusal{status.Newf(codes.ResourceExhausted, format, args...)}
}

func (r *refusal) Error() string              { return r.Err().Error() }
func (r *refusal) GRPCStatus() *status.Status { return r.Status }
func (r *refusal) Ours() bool                 { return true }
