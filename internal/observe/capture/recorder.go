package capture

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
	"github.com/criproxy/criproxy/internal/transport"
)

const defaultBytes = 16 << 20

// Config says how a [Recorder] records. The zero Config hides only credentials in metadata.
type Config struct {
	// Bytes bounds the memory for events. Zero means 16 MiB. Three sixteenths of it are for the latest events, as they were
	// sent, and the rest for older ones, compressed while [Recorder.Archive] runs. A message longer than a third of the memory
	// for the latest events is truncated, and its event says so.
	Bytes int

	// Redact finds secrets in messages. Followers get copies with these overwritten; calls do not
	// wait for that. Nil finds no secrets.
	Redact *Redactor

	// UnsafeRaw keeps all secrets, credentials in metadata included.
	UnsafeRaw bool

	// Schema describes the messages. Nil knows none: they are compressed less.
	Schema *codec.Schema

	// Notable reports whether calls of a method are kept as long as those that have failed or were slow. Optional.
	Notable func(method string) bool
}

// A Recorder keeps the latest events of all calls in memory, and hands them to followers. When
// memory runs out it first drops large messages, which are mostly lists; their events stay, without
// the payload. No call waits for a follower: a follower that is too slow misses events, and learns
// how many. A Recorder is safe for concurrent use.
type Recorder struct {
	ring    *ring
	archive *archive
	redact  *Redactor
	raw     bool
	began   time.Time // [Event].Mono counts from there
	calls   atomic.Uint64

	earlier  inheritance
	restored uint64 // number of the last event that Restore or Inherit has added; zero: none
	kept     time.Time
}

// NewRecorder returns a recorder.
func NewRecorder(cfg Config) *Recorder {
	bytes := cmp.Or(cfg.Bytes, defaultBytes)
	latest := max(bytes*3/16, min(bytes/2, 512<<10))
	r := &Recorder{ring: newRing(latest), redact: cfg.Redact, raw: cfg.UnsafeRaw, began: time.Now()}
	if r.raw {
		r.redact = nil
	}
	r.archive = newArchive(r, max(bytes-latest-packersHold, bytes/4), &cfg)
	return r
}

// Close ends the recording: followers end when they have read all events.
func (r *Recorder) Close() { r.ring.close() }

// Recorded returns how many events have been recorded.
func (r *Recorder) Recorded() uint64 {
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	return r.ring.seq
}

// Inherited returns the number of the last event that [Recorder.Restore] has added, zero if there is none.
func (r *Recorder) Inherited() uint64 { return r.restored }

// Kept returns the time of the last event of a call that [Recorder.Restore] has added, zero if there is none.
func (r *Recorder) Kept() time.Time { return r.kept }

// Missed returns how many events and large messages slow followers have missed, summed over all
// followers.
func (r *Recorder) Missed() uint64 { return r.ring.missed.Load() }

// LegInfo describes a leg that begins.
type LegInfo struct {
	Method   string // as it is called on this leg
	Backend  string // of a backend's leg, its name
	Client   bool   // it is the client's leg
	Peer     Peer   // of the client's leg, the process that called; optional
	Metadata metadata.MD
}

// A Leg records one leg of a call. A client's leg is the context of the call, too.
type Leg struct {
	context.Context
	rec     *Recorder
	call    uint64
	leg     int
	own     bool
	began   time.Time
	method  string
	backend string
	client  *Leg         // of a backend's leg, the client's; nil for criproxy's own calls
	legs    atomic.Int32 // of a client's leg: how many backend legs the call has
	ended   atomic.Bool
}

type legKey struct{}

// Value implements [context.Context].
func (l *Leg) Value(key any) any {
	if key == (legKey{}) {
		return l
	}
	return l.Context.Value(key)
}

// IsOfClient reports whether a call with this context is a client's, or made for a client.
func IsOfClient(ctx context.Context) bool {
	_, ok := ctx.Value(legKey{}).(*Leg)
	return ok
}

// Begin records that a leg begins. The context that it returns links the legs of a call: it must
// be the parent of the contexts of the backend legs. Begin and the methods of the leg copy their
// arguments before they return.
func (r *Recorder) Begin(ctx context.Context, info LegInfo) (context.Context, *Leg) {
	l := &Leg{}
	return r.BeginIn(ctx, info, l), l
}

// BeginIn is Begin, for a leg in memory of the caller, which must be zero.
func (r *Recorder) BeginIn(ctx context.Context, info LegInfo, l *Leg) context.Context {
	l.rec, l.method, l.backend, l.began = r, info.Method, info.Backend, time.Now()
	if info.Client {
		l.call, l.client, l.Context = r.calls.Add(1), l, ctx
		ctx = l
	} else if client, ok := ctx.Value(legKey{}).(*Leg); ok {
		l.call, l.leg, l.client = client.call, int(client.legs.Add(1)), client
	} else {
		l.call, l.leg, l.own = r.calls.Add(1), 1, true
	}
	ev := l.event(Start)
	ev.Peer, ev.Metadata = info.Peer, info.Metadata
	if deadline, ok := ctx.Deadline(); ok {
		ev.Timeout = max(deadline.Sub(ev.Time), 1) // zero would mean no deadline
	}
	r.record(&ev)
	return ctx
}

// maxPassed is how long a leg goes on without a look at the clock.
const maxPassed = 100 * time.Millisecond

// event returns an event that happens on the leg now.
func (l *Leg) event(kind Kind) Event {
	now := l.began
	if kind != Start {
		passed := time.Since(now) // takes half as long as time.Now
		if now = now.Add(passed); passed > maxPassed {
			now = time.Now() // somebody may have set the clock meanwhile
		}
	}
	return Event{Kind: kind, Time: now, Mono: now.Sub(l.rec.began), Call: l.call, Leg: l.leg, Own: l.own, Method: l.method, Backend: l.backend}
}

// record puts an event without a message into the ring.
func (r *Recorder) record(ev *Event) {
	buf := getBuffer()
	r.put(buf, appendRecord((*buf)[:0], ev, !r.raw), codec.Frame{})
}

// Request records a message towards the backend.
func (l *Leg) Request(f *codec.Frame) { l.message(Request, f) }

// Reply records a message towards the client.
func (l *Leg) Reply(f *codec.Frame) { l.message(Reply, f) }

func (l *Leg) message(kind Kind, f *codec.Frame) {
	ev := l.event(kind)
	ev.Size = f.Len()
	kept := min(ev.Size, l.rec.ring.maxPayload)
	ev.Truncated = kept < ev.Size
	buf := getBuffer()
	b := appendRecord((*buf)[:0], &ev, false)
	if kept < l.rec.ring.holdFrom {
		l.rec.put(buf, f.AppendTo(b, kept), codec.Frame{})
		return
	}
	var head codec.Frame
	if !ev.Truncated {
		head = *f.Ref()
	} else {
		head = *codec.FrameOfBuffers(buffers.Head(f.Buffers(), kept))
	}
	if buffers.Held(head.Buffers()) > min(2*kept, l.rec.ring.holdable()) {
		head.Free()
		bufs, _ := buffers.Fill(kept, func(dst []byte) ([]byte, error) { return f.AppendTo(dst, kept), nil })
		head = *codec.FrameOfBuffers(bufs)
	}
	b[recordFlags] |= flagFrame
	b = append(b, 0) // the ring sets this to the frame's place
	l.rec.put(buf, b, head)
}

// Header records the header of the answer.
func (l *Leg) Header(md metadata.MD) {
	ev := l.event(Header)
	ev.Metadata = md
	l.rec.record(&ev)
}

// End records the end of the leg. Only the first End counts.
func (l *Leg) End(err error, trailer metadata.MD) {
	if l.ended.Swap(true) {
		return
	}
	ev := l.event(End)
	ev.Code, ev.Message, ev.Details = statusOf(err)
	if ev.Code == codes.Canceled && l.client != nil && l.client.Err() != nil { // its context ends when the client goes
		ev.Message = clientEnded
	}
	ev.Metadata = trailer
	l.rec.record(&ev)
}

// clientEnded is the message of a status that the client does not get, because it has gone or has
// canceled the call.
const clientEnded = "the client ended the call"

// EndedByClient reports whether a recorded status says that the client ended the call. This is not a
// failure: it is how kubelet ends each stream of events.
func EndedByClient(code codes.Code, message string) bool {
	return code == codes.Canceled && message == clientEnded
}

// statusOf returns the status that a client gets for err.
func statusOf(err error) (code codes.Code, message string, details []byte) {
	if errors.Is(err, io.EOF) {
		return 0, "", nil
	}
	s := transport.StatusOf(err)
	return s.Code(), s.Message(), transport.Details(s)
}

// maxCopied is the length from which any ring holds the frame of a message instead of a copy, unless
// the frame takes far more memory than the recorded part of the message.
const maxCopied = 32 << 10

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

func getBuffer() *[]byte { return scratch.Get().(*[]byte) }

// put hands a record to the ring, and its buffer back to the pool, unless the
// ring has taken it over.
func (r *Recorder) put(buf *[]byte, record []byte, frame codec.Frame) {
	if r.ring.isLarge(len(record)) {
		r.ring.put(slices.Clone(record), frame)
	} else {
		r.ring.put(record, frame)
	}
	r.recycle(buf, record)
}

func (r *Recorder) recycle(buf *[]byte, record []byte) {
	if cap(record) <= 2*maxCopied {
		*buf = record
		scratch.Put(buf)
	}
}
