// Package limits bounds the resources that clients use: calls of a socket and of a backend, and the
// memory for messages, which is reserved before a message comes.
//
// [Memory] is the memory for messages of the process. It is the budget of the connections to clients
// and backends, and [Memory.Intercept] is an interceptor of the server. [Conn] wraps the connection
// to a backend. Both know the client of a call by its [Client], which the peer of the connection has.
package limits

import (
	"cmp"
	"context"
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/profile"
)

// Memory is the memory that the messages of all calls together may take. A message reserves its
// part before it comes, and releases it when the message that was made of it is on its way. This
// keeps the process below GOMEMLIMIT; docs/operations.md has the formula. It is safe for concurrent use.
type Memory struct {
	// Refused is called for each call for which there is no room at its socket. Nil is not called. It must be set before calls come.
	Refused func(ctx context.Context, method string, err error)

	total      int64
	maxMessage int
	free       *semaphore.Weighted
	side       *semaphore.Weighted // the part of free for all sockets but the main one
	replyWait  atomic.Int64        // how long a list waits for memory; see Configure
	taken      atomic.Int64
	refused    atomic.Int64    // calls that were refused for lack of memory, or of room at their socket
	lists      map[string]bool // :: method whose replies are a list
}

const (
	// defaultMemory is the memory for messages if GOMEMLIMIT is not set.
	defaultMemory = 1 << 30
	// baseMemory is the memory of the process without messages and recorder, but with its
	// caches of the runtimes.
	baseMemory = 128 << 20
	// copies is how often a message may be in memory: as it came, edited, and as garbage that
	// has not been collected yet.
	copies = 3
	// leastMessages is how many messages of the largest size fit into the memory at least.
	leastMessages = 4
	// smallMessage is the size below which messages are not counted: they fit into the window
	// of their call, so the limits on calls bound them.
	smallMessage = 64 << 10
	// MemoryWait is how long a message waits until others release memory.
	MemoryWait = 5 * time.Second
)

// memoryFor returns the memory for messages that fits below limit, the limit of the whole
// process in bytes, as GOMEMLIMIT sets it.
func memoryFor(limit int64, recorder, maxMessage int) int64 {
	if limit == math.MaxInt64 {
		return max(defaultMemory, leastMessages*int64(maxMessage))
	}
	return max((limit-baseMemory-int64(max(recorder, 0)))/copies, leastMessages*int64(maxMessage))
}

// New returns the memory for messages. Methods whose replies have a list of messages count as
// lists.
func New(cfg *config.Config, profile *profile.Profile, schema *codec.Schema) *Memory {
	n := memoryFor(debug.SetMemoryLimit(-1), cfg.FlightRecorder, cfg.MaxMessageBytes)
	m := &Memory{total: n, maxMessage: cfg.MaxMessageBytes, free: semaphore.NewWeighted(n), side: semaphore.NewWeighted(n / 2), lists: map[string]bool{}}
	m.Configure(cfg)
	for _, method := range schema.Methods() {
		fields := method.Output.Fields()
		for i := range fields.Len() {
			if fd := fields.Get(i); fd.IsList() && fd.Message() != nil && !profile.Endless(method.Name) {
				m.lists[method.Name] = true
			}
		}
	}
	return m
}

// Configure applies the settings that a reload may change. A list waits for memory for at most half
// of its budget, so that no runtime counts as slow because of criproxy itself.
func (m *Memory) Configure(cfg *config.Config) {
	m.replyWait.Store(int64(min(MemoryWait, cmp.Or(cfg.ListBudget, backend.DefaultBudget)/2)))
}

// Usage returns how many bytes the messages of calls under way take, how many they may take, and
// how many calls were refused.
func (m *Memory) Usage() (taken, total, refused int64) {
	return m.taken.Load(), m.total, m.refused.Load()
}

// Take takes n bytes for something other than a message, and reports whether they were free. Give
// returns them.
func (m *Memory) Take(n int64) bool { return m.free.TryAcquire(n) }

// Give returns n bytes that Take took.
func (m *Memory) Give(n int64) { m.free.Release(n) }

// Intercept is a stream interceptor. It limits the number of calls of a socket, and counts the
// memory of their replies.
func (m *Memory) Intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	client := clientOf(ss.Context())
	if client == nil {
		return handler(srv, ss) // the access list has refused it
	}
	max := client.Socket.MaxCalls.Load()
	if n := client.Socket.Calls.Add(1); n > max {
		client.Socket.Calls.Add(-1)
		m.refused.Add(1)
		err := status.Errorf(codes.ResourceExhausted, "criproxy: %s: the socket %s has as many calls under way as its limit allows (%d); make fewer at once, or raise maxCalls in listeners",
			info.FullMethod, client.Socket.Name, max)
		if m.Refused != nil {
			m.Refused(ss.Context(), info.FullMethod, err)
		}
		return err
	}
	defer client.Socket.Calls.Add(-1)
	s := &limitedStream{ServerStream: ss, call: call{memory: m, client: client, whole: m.lists[info.FullMethod]}}
	s.ctx = callContext{ss.Context(), &s.call}
	defer s.call.end()
	return handler(srv, s)
}
