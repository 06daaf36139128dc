package capture

import (
	"cmp"
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// An archive holds the events that the ring has no room for, without their secrets, in compressed blocks on two shelves:
// one for all events, and one for those of notable calls, which reaches back much further. Each shelf forgets its oldest
// block first. One goroutine at a time moves events from the ring: no call waits for it.
type archive struct {
	notes func(method string) bool // reports whether all calls of a method are notable

	load    func() // reads what earlier processes have left, the first time; nil: there is nothing to read
	earlier uint64 // number of the last event of that

	mu      sync.Mutex // guards all below
	ring    *Follower  // reads what the archive does not have yet
	all     shelf
	notable shelf
	noted   map[string]bool      // :: method → what notes says
	live    map[uint64]*liveCall // :: number of a call under way → its events so far
	held    int                  // bytes of these events
	gap     bool                 // the archive has missed events, perhaps the ends of calls in live
	passing bool                 // a Passage may have the ends of calls that are not in live
	mono    time.Duration        // Event.Mono of the latest event
	unsure  time.Duration        // until then calls may be under way that are not in live
	free    []*liveCall
}

type shelf struct {
	packer *packer
	max    int // bytes of all blocks
	blocks []*block
}

// A liveCall has the events of a call under way, as records.
type liveCall struct {
	records []byte
	began   time.Duration // by Event.Mono
	replies int
}

// packersHold is how many bytes the compression itself needs.
const packersHold = 1500 << 10

const (
	slowCall     = time.Second // from which a call is notable
	maxLive      = 1024        // calls under way whose events are kept
	maxLiveBytes = 32 << 10    // of the events of such a call, from which messages are truncated
	maxLiveMore  = 16 << 10    // of further events, from which only its end is kept
	maxLiveTotal = 4 << 20     // of the events of all of them
	shelfBlocks  = 20          // on a full shelf
)

func newArchive(r *Recorder, bytes int, cfg *Config) *archive {
	s := newShapes(cfg.Schema)
	a := &archive{notes: cfg.Notable, noted: map[string]bool{}, live: map[uint64]*liveCall{}}
	a.notable = shelf{max: bytes / 8, packer: &packer{kind: partNotable, shapes: s, window: 64 << 10}}
	a.all = shelf{max: bytes - a.notable.max, packer: &packer{kind: partAll, shapes: s, window: 512 << 10}}
	a.ring = r.Follow(true)
	a.ring.passes = true
	return a
}

// add adds an event to the current block, or to a new one, which add returns.
func (s *shelf) add(ev *Event) (begun *block) {
	if begun = s.packer.add(ev); begun != nil {
		s.blocks = append(s.blocks, begun)
	}
	return begun
}

// settle ends the current block if it is full.
func (s *shelf) settle() {
	if s.packer.full(s.max / shelfBlocks) {
		s.packer.end()
		s.forget()
	}
}

// where adds to blocks those before the current one, by their first number, that have events of a call other than replies.
func (s *shelf) where(blocks []uint64, c *liveCall) []uint64 {
	for rest := c.records; len(rest) > 0; rest = rest[recordLength(rest):] {
		seq := binary.LittleEndian.Uint64(rest[recordSeq:])
		for i, b := range slices.Backward(s.blocks) {
			if b.First <= seq {
				if i < len(s.blocks)-1 && Kind(rest[recordBody]) != Reply {
					blocks = include(blocks, b.First)
				}
				break
			}
		}
	}
	return blocks
}

// forget removes the oldest blocks if there are too many.
func (s *shelf) forget() {
	total := 0
	for i, b := range slices.Backward(s.blocks) {
		if total += len(b.parts); total > s.max {
			s.blocks = slices.Delete(s.blocks, 0, i+1)
			return
		}
	}
}

// take moves up to n events from the ring to the archive. If there are fewer, it returns a channel as [Follower.try] does.
func (a *archive) take(n int) (all bool, wake <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ev Event
	for range n {
		got, wake := a.ring.try(&ev)
		if !got {
			return true, wake
		}
		if ev.Kind == Missed { // the numbers say so
			a.gap = true
			continue
		}
		a.mono = ev.Mono
		if begun := a.all.add(&ev); begun != nil {
			begun.Open = a.open()
		}
		a.note(&ev)
		a.all.settle()
		a.notable.settle()
	}
	return false, nil
}

// note puts the events of a call on the shelf of notable calls when the call has ended, if it is one.
func (a *archive) note(ev *Event) {
	if ev.Kind == Changed {
		a.notable.add(ev)
		return
	}
	c := a.live[ev.Call]
	if c == nil {
		c = a.begin(ev)
	}
	ends := ev.Kind == End && ev.front() // else the client's leg is still under way
	switch x := &a.all.packer.block.blockIndex; {
	case !ends || ev.Code == codes.OK:
	case c == nil:
		x.Needs = include(x.Needs, anyBlock)
	default:
		x.Needs = a.all.where(x.Needs, c)
	}
	if c == nil {
		return
	}
	if at := len(c.records); ends || at < maxLiveBytes+maxLiveMore {
		one := *ev
		if room := maxLiveBytes - at; len(one.Payload) > room {
			one.Payload, one.Truncated = one.Payload[:max(room, 0)], true
		}
		c.records = appendRecord(c.records, &one, false)
		sealRecord(c.records[at:], ev.Seq)
		a.held += len(c.records) - at
	}
	if ev.Kind == Reply && ev.Leg == 0 {
		c.replies++
	}
	if !ends {
		return
	}
	failed := ev.Code != codes.OK && !EndedByClient(ev.Code, ev.Message)
	slow := ev.Mono-c.began >= slowCall && c.replies <= 1
	if failed || slow || a.isNoted(ev.Method) {
		for rest := c.records; len(rest) > 0; {
			n := recordLength(rest)
			var old Event
			a.ring.reader.decode(rest[:n:n], &old)
			a.notable.add(&old)
			rest = rest[n:]
		}
	}
	delete(a.live, ev.Call)
	a.held -= len(c.records)
	if cap(c.records) <= maxLiveBytes && len(a.free) < 8 {
		a.free = append(a.free, c)
	}
}

// begin returns the call that an event begins, or nil if the archive does not follow it.
func (a *archive) begin(ev *Event) *liveCall {
	if ev.Kind != Start || !ev.front() { // the call has ended for its client, or its beginning was missed
		return nil
	}
	if len(a.live) >= maxLive || a.held >= maxLiveTotal {
		a.unsure = ev.Mono + unsureFor
		if !a.gap {
			return nil
		}
		clear(a.live)
		a.held, a.gap = 0, false
	}
	c := &liveCall{}
	if n := len(a.free); n > 0 {
		c, a.free = a.free[n-1], a.free[:n-1]
	}
	*c = liveCall{records: c.records[:0], began: ev.Mono}
	a.live[ev.Call] = c
	return c
}

func (a *archive) isNoted(method string) bool {
	is, known := a.noted[method]
	if !known && a.notes != nil {
		if is = a.notes(method); len(a.noted) < 1000 { // a client may call whatever it likes
			a.noted[method] = is
		}
	}
	return is
}

const (
	gather     = 250 * time.Millisecond // how long events gather before the archive takes them
	takeAtOnce = 64                     // events
	takeShare  = 100                    // the archive takes at most one part of so many of the time of a processor
)

// Archive moves events from the ring to the archive until the recorder is closed or ctx ends. If there are more calls for
// long than a hundredth of a processor can archive, some are only in the ring, and are missing when the ring has forgotten
// them.
func (r *Recorder) Archive(ctx context.Context) {
	for {
		var all bool
		var wake <-chan struct{}
		pause := takeShare * work(func() { all, wake = r.archive.take(takeAtOnce) })
		if all {
			if wake == nil {
				return
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
			pause = max(pause, gather)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// work returns the time of a processor that do takes. On a machine with much else to do, do itself takes far longer.
func work(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, before := time.Now(), threadTime()
	do()
	return min(threadTime()-before, time.Since(began)) // a simulated clock counts no work
}

// threadTime returns the time of a processor that this thread has taken.
func threadTime() time.Duration {
	var t unix.Timespec
	// It cannot fail: all Linux has it. It is a raw system call because it must not wake Go's monitor, which costs more.
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano())
}

// whole returns when the archive has what earlier processes have left.
func (a *archive) whole() {
	if a.load != nil {
		a.load()
	}
}

// Reach says how far back a recorder reaches.
type Reach struct {
	All, Notable time.Time // of the oldest event, and of the oldest of a notable call; zero if there is none
	First        uint64    // number of the oldest event
}

// Reach returns how far back the recorder reaches.
func (r *Recorder) Reach() Reach {
	a := r.archive
	a.whole()
	a.mu.Lock()
	var reach Reach
	for i, at := range []*time.Time{&reach.All, &reach.Notable} {
		if blocks := [...]*shelf{&a.all, &a.notable}[i].blocks; len(blocks) > 0 {
			*at = time.Unix(0, blocks[0].From)
			if reach.First == 0 || blocks[0].First < reach.First {
				reach.First = blocks[0].First
			}
		}
	}
	a.mu.Unlock()
	if reach.All.IsZero() {
		var ev Event
		f := r.Follow(false)
		r.ring.mu.Lock()
		f.next = r.ring.oldest.first
		f.enter(r.ring.oldest)
		r.ring.mu.Unlock()
		if f.TryNext(&ev) {
			reach.All = ev.Time
			reach.First = cmp.Or(reach.First, ev.Seq)
		}
	}
	if reach.Notable.IsZero() || reach.All.Before(reach.Notable) {
		reach.Notable = reach.All
	}
	return reach
}
