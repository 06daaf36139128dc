package main

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/contain"
)

// memory is what the messages of all calls together may take. A call takes its part
// before its message comes, and gives it back when the last of it is on the wire. It is
// what keeps the process below GOMEMLIMIT: docs/operations.md has the formula.
type memory struct {
	total      int64
	maxMessage int
	free       *semaphore.Weighted
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
	// memoryWait is how long a call waits for others to give memory back.
	memoryWait = 5 * time.Second
)

// memoryFor returns the memory for messages below a limit for the whole process, as
// GOMEMLIMIT has it.
func memoryFor(limit int64, recorder, maxMessage int) int64 {
	if limit == math.MaxInt64 {
		return max(defaultMemory, leastMessages*int64(maxMessage))
	}
	return max((limit-baseMemory-int64(max(recorder, 0)))/copies, leastMessages*int64(maxMessage))
}

// newMemory returns the memory for messages. The methods that list are those of schema
// whose replies repeat messages: how long a reply will be nobody knows before. A list is
// taken to be as long as the longest were lately, the first one to be as long as any may
// be. All else is counted when it is there: the output of commands, which may be long, is
// as a rule short, and calls that take their time must not keep memory for nothing.
func newMemory(cfg *Config, profile *director.Profile, schema *codec.Schema) *memory {
	n := memoryFor(debug.SetMemoryLimit(-1), cfg.FlightRecorder, cfg.MaxMessageBytes)
	m := &memory{total: n, maxMessage: cfg.MaxMessageBytes, free: semaphore.NewWeighted(n), sizes: map[string]*atomic.Int64{}}
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

// register adds the metrics of the limits, and that of panics.
func (m *memory) register(r *prometheus.Registry) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "criproxy_message_memory_bytes", Help: "Memory that messages of calls under way take, or have been promised.",
		}, func() float64 { return float64(m.taken.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "criproxy_message_memory_limit_bytes", Help: "Memory that messages of calls under way may take.",
		}, func() float64 { return float64(m.total) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "criproxy_overload_calls_total", Help: "Calls that a socket refused because it had too many, or no memory for their messages.",
		}, func() float64 { return float64(m.refused.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "criproxy_panics_total", Help: "Panics that were contained; each is in the log.",
		}, func() float64 { return float64(contain.Count()) }),
	)
}

// expect returns how long the reply to a method may be.
func (m *memory) expect(method string) int64 {
	size := m.sizes[method]
	if size == nil {
		return 0
	}
	if n := size.Load(); n != unknownSize {
		return n
	}
	return int64(m.maxMessage)
}

// learn notes how long a reply was.
func (m *memory) learn(method string, n int64) {
	if size := m.sizes[method]; size != nil {
		size.Store(min(max(n, size.Load()*7/8), m.total/leastMessages))
	}
}

// hold is what one call has taken. It is given back once, when nobody shares it any more.
// grpc-proxy's goroutines outlive the call: what they take after that is given back at once.
type hold struct {
	memory *memory
	peer   *peerInfo // who has it on their account
	method string

	mu       sync.Mutex
	n        int64
	owed     int64 // what has come without room for it
	promised int64 // of n, for replies: what was expected, and more as lists came
	came     int64 // of lists that runtimes stream
	shares   int   // who may need it: the call, and frames that are not on the wire yet
	over     bool  // all was given back, and n and owed stay zero
}

type holdKey struct{}

// holdOf returns what the call has taken, nil for calls that are our own.
func holdOf(ctx context.Context) *hold {
	h, _ := ctx.Value(holdKey{}).(*hold)
	return h
}

// take takes n bytes more, and waits for them if need be.
func (h *hold) take(ctx context.Context, n int64) error {
	if n < smallMessage {
		return nil
	}
	if err := h.wait(ctx, n); err != nil {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return h.refuse(fmt.Sprintf("no memory for a message of %d bytes came free within %s", n, memoryWait))
	}
	h.memory.taken.Add(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		h.release(n)
		return h.ended()
	}
	h.n += n
	return nil
}

// ended is the error of who asks for memory when the call is over.
func (h *hold) ended() error {
	return status.Errorf(codes.Canceled, "criproxy: %s: the call has ended", h.method)
}

// refuse is the error of a call for which there is no room.
func (h *hold) refuse(why string) error {
	h.memory.refused.Add(1)
	return status.Errorf(codes.ResourceExhausted, "criproxy: %s: %s: the messages of all calls under way take %d of %d; read the replies, make fewer calls at once, or raise GOMEMLIMIT",
		h.method, why, h.memory.taken.Load(), h.memory.total)
}

// note takes n bytes that are here already. If there is no room for them they are owed.
func (h *hold) note(n int64) {
	if n < smallMessage {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return // nobody gets it
	}
	if !h.try(n) {
		h.peer.debt.add(n)
		h.owed += n
		return
	}
	h.memory.taken.Add(n)
	h.n += n
}

// keeps takes what more of a list has come, n bytes, than was expected. The whole list is
// kept until its end has come. It does not wait: the time of a list is the runtime's.
func (h *hold) keeps(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return h.ended()
	}
	h.came += n
	more := h.came - h.promised
	if more <= 0 {
		return nil
	}
	more = max(more, smallMessage)
	if !h.try(more) {
		return h.refuse(fmt.Sprintf("no memory for a list of more than %d bytes, which a runtime streams", h.came))
	}
	h.memory.taken.Add(more)
	h.n += more
	h.promised += more
	return nil
}

// covers reports whether n bytes of replies have been taken already.
func (h *hold) covers(n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return n <= h.promised
}

// try takes n bytes of the client's share, and of the memory, if they are free.
func (h *hold) try(n int64) bool {
	share := h.peer.share(h.memory)
	if !share.TryAcquire(n) {
		return false
	}
	if !h.memory.free.TryAcquire(n) {
		share.Release(n)
		return false
	}
	return true
}

// wait waits for n bytes of the client's share, and of the memory.
func (h *hold) wait(ctx context.Context, n int64) error {
	if h.try(n) {
		return nil
	}
	share := h.peer.share(h.memory)
	ctx, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	if err := share.Acquire(ctx, n); err != nil {
		return err
	}
	if err := h.memory.free.Acquire(ctx, n); err != nil {
		share.Release(n)
		return err
	}
	return nil
}

// give gives n bytes back before the call ends.
func (h *hold) give(n int64) {
	if n < smallMessage {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return // with all the rest
	}
	h.n -= n
	h.release(n)
}

func (h *hold) release(n int64) {
	h.memory.taken.Add(-n)
	h.peer.share(h.memory).Release(n)
	h.memory.free.Release(n)
}

// share keeps what was taken until the function that it returns has been called.
func (h *hold) share() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shares++
	return h.done
}

func (h *hold) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shares--; h.shares > 0 {
		return
	}
	h.over = true
	if h.n > 0 {
		h.release(h.n)
		h.n = 0
	}
	if h.owed > 0 {
		h.peer.debt.pay(h.owed)
		h.owed = 0
	}
}

// limit keeps the calls of a socket to their number, and their messages to the memory
// that there is.
func (m *memory) limit(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	who := peerOf(ss.Context())
	if who == nil {
		return handler(srv, ss) // refused already
	}
	max := who.socket.maxCalls.Load()
	if n := who.socket.calls.Add(1); n > max {
		who.socket.calls.Add(-1)
		m.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "criproxy: %s: the socket %s has %d calls under way, which is its limit; make fewer at once, or raise maxCalls in listeners",
			info.FullMethod, who.socket.path, max)
	}
	defer who.socket.calls.Add(-1)
	if n := who.debt.wait(ss.Context()); n > 0 {
		if err := ss.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		m.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "criproxy: %s: this connection has not read %d bytes of replies, for which there is no memory; read them, make fewer calls at once, or raise GOMEMLIMIT", info.FullMethod, n)
	}
	h := &hold{memory: m, peer: who, method: info.FullMethod, shares: 1}
	defer h.done()
	expected := m.expect(info.FullMethod)
	if err := h.take(ss.Context(), expected); err != nil {
		return err
	}
	h.promised = expected
	s := &heldStream{ServerStream: ss, ctx: context.WithValue(ss.Context(), holdKey{}, h), hold: h}
	err := handler(srv, s)
	if err == nil {
		m.learn(info.FullMethod, s.sent)
	}
	return err
}
