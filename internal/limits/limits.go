// Package limits bounds what clients may take: calls of a socket and of a backend, and the
// memory for messages, which a call reserves before a message comes and releases when the
// last of it is on the wire.
//
// Memory is the memory of the process, its Intercept the interceptor of the gRPC server. Conn
// wraps the connection to a backend. Both know the client of a call by Client, which the
// credentials of its connection return.
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
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// Memory is the memory that the messages of all calls together may take. A call takes its part
// before its message comes, and gives it back when the last byte of it is on the wire. This
// keeps the process below GOMEMLIMIT; docs/operations.md has the formula.
type Memory struct {
	total      int64
	maxMessage int
	free       *semaphore.Weighted
	side       *semaphore.Weighted // of it, for all sockets but the main one
	replyWait  atomic.Int64        // how long a call waits when a runtime has begun to answer; see configure
	taken      atomic.Int64
	refused    atomic.Int64             // calls for which there was no room
	sizes      map[string]*atomic.Int64 // :: method that lists → about how long its replies are
}

const (
	// defaultMemory is the memory for messages where GOMEMLIMIT is not set.
	defaultMemory = 1 << 30
	// baseMemory is what the process takes beside messages and recorder: itself, and
	// what it knows of the runtimes.
	baseMemory = 128 << 20
	// copies is how often a message may be in memory: as it came, in one piece, and edited;
	// with what the garbage collector has not reclaimed yet.
	copies = 4
	// leastMessages is how many messages of the largest size there is room for at least.
	leastMessages = 4
	// smallMessage is the size below which messages are not counted: how many calls there
	// may be bounds them.
	smallMessage = 64 << 10
	// MemoryWait is how long a call waits for others to give memory back.
	MemoryWait = 5 * time.Second
	// lullTime is how long a call keeps memory for a reply of which nothing comes.
	lullTime = 250 * time.Millisecond
)

// memoryFor returns the memory for messages that fits below limit, the limit of the whole
// process in bytes, as GOMEMLIMIT sets it.
func memoryFor(limit int64, recorder, maxMessage int) int64 {
	if limit == math.MaxInt64 {
		return max(defaultMemory, leastMessages*int64(maxMessage))
	}
	return max((limit-baseMemory-int64(max(recorder, 0)))/copies, leastMessages*int64(maxMessage))
}

// New returns the memory for messages. It expects long replies from the methods of schema whose
// replies repeat messages, the lists. The length of a reply is unknown before it comes: a list
// is expected to be as long as the longest recent one, the first list as long as any message may
// be. Other replies are counted when they are here; the output of commands may be long, but
// seldom is.
func New(cfg *config.Config, profile *director.Profile, schema *codec.Schema) *Memory {
	n := memoryFor(debug.SetMemoryLimit(-1), cfg.FlightRecorder, cfg.MaxMessageBytes)
	m := &Memory{total: n, maxMessage: cfg.MaxMessageBytes, free: semaphore.NewWeighted(n), side: semaphore.NewWeighted(n / 2), sizes: map[string]*atomic.Int64{}}
	m.Configure(cfg)
	for _, method := range schema.Methods() {
		if profile.Endless(method.Name) {
			continue
		}
		fields := method.Output.Fields()
		for i := range fields.Len() {
			if fd := fields.Get(i); fd.IsList() && fd.Message() != nil {
				m.sizes[method.Name] = &atomic.Int64{}
				m.sizes[method.Name].Store(unknownSize)
			}
		}
	}
	return m
}

const unknownSize = -1

// Configure applies what a reload may change. When a runtime has begun to answer, a call waits
// for room at most half the time that a list may take, so that no runtime counts as slow because
// of criproxy itself.
func (m *Memory) Configure(cfg *config.Config) {
	m.replyWait.Store(int64(min(MemoryWait, cmp.Or(cfg.ListBudget, lastknown.DefaultBudget)/2)))
}

// Usage returns how many bytes the messages of calls under way take, how many they may take, and
// how many calls were refused.
func (m *Memory) Usage() (taken, total, refused int64) {
	return m.taken.Load(), m.total, m.refused.Load()
}

// Reserve takes n bytes for something other than a message. It reports whether they were free.
// Release gives them back.
func (m *Memory) Reserve(n int64) bool { return m.free.TryAcquire(n) }

// Release gives back what Reserve took.
func (m *Memory) Release(n int64) { m.free.Release(n) }

// ExpectNothing forgets how long lists were, and expects short ones.
func (m *Memory) ExpectNothing() {
	for _, size := range m.sizes {
		size.Store(0)
	}
}

// Expect returns the expected length of the replies to a call of method, 0 if they are short.
// While that is unknown n is 0, and most is the length that a reply may have.
func (m *Memory) Expect(method string) (n, most int64) {
	size := m.sizes[method]
	if size == nil {
		return 0, 0
	}
	n = size.Load()
	switch {
	case n == unknownSize:
		return 0, int64(m.maxMessage)
	case n < smallMessage:
		return 0, 0
	}
	return n, n
}

// learn notes the length of a reply.
func (m *Memory) learn(method string, n int64) {
	if size := m.sizes[method]; size != nil {
		size.Store(min(max(n, size.Load()*7/8), m.total/leastMessages))
	}
}

// Intercept is a stream interceptor. It limits the calls of a socket to their number, and their
// messages to the memory that there is.
func (m *Memory) Intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	who := clientOf(ss.Context())
	if who == nil {
		return handler(srv, ss) // the access list has refused it
	}
	max := who.Socket.MaxCalls.Load()
	if n := who.Socket.Calls.Add(1); n > max {
		who.Socket.Calls.Add(-1)
		m.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "criproxy: %s: the socket %s has %d calls under way, which is its limit; make fewer at once, or raise maxCalls in listeners",
			info.FullMethod, who.Socket.Name, max)
	}
	defer who.Socket.Calls.Add(-1)
	if n := who.debt.wait(ss.Context()); n > 0 {
		if err := ss.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		m.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "criproxy: %s: this connection has not read %d bytes of replies, for which there is no memory; read them, make fewer calls at once, or raise GOMEMLIMIT", info.FullMethod, n)
	}
	h := &reservation{memory: m, client: who, method: info.FullMethod, shares: 1}
	defer h.done()
	if err := h.begin(ss.Context()); err != nil {
		return err
	}
	s := &limitedStream{ServerStream: ss, ctx: context.WithValue(ss.Context(), reservationKey{}, h), reservation: h}
	err := handler(srv, s)
	if err == nil {
		m.learn(info.FullMethod, s.sent)
	}
	return err
}
