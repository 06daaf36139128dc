package page

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Bounds of a history. It forgets the oldest calls first, and the messages and metadata of calls before that.
const (
	maxCalls = 100_000
	maxBytes = 128 << 20 // of messages, and of what is around them
	around   = 1 << 10   // about what a leg takes besides its messages
)

// A history holds the latest calls, for browsers to read at their own pace. It is safe for concurrent use.
type history struct {
	mu      sync.Mutex
	printer *calls.Printer // for calls of the process that is followed now
	entries []entry        // in the order of seq
	bare    int            // how many of the first entries have no messages
	bytes   int
	next    uint64                 // the latest key
	open    map[*calls.Call]uint64 // :: call under way that was shown → its key
	changed chan struct{}          // closed when an entry is added
	latest  time.Time              // when the latest call ended
	ended   uint64                 // how many calls have ended so far
	story   Story
	wrong   []byte // a [why.Report], as JSON; nil if there was none yet
	version uint64 // of story and wrong: grows with each change of them
}

// An entry is a call, or a newer state of an earlier entry's call, with the same key.
type entry struct {
	seq      uint64 // grows with each entry
	row      Row
	with     *calls.Printer
	bytes    int
	ended    uint64 // how many calls had ended, with this one
	compared bool   // the row has what was rewritten
}

// waits reports whether the row lacks how much was rewritten.
func (e *entry) waits() bool { return !e.compared && e.row.Call.Ended }

// compare finds out how much was rewritten. That takes longer than all else about a call, so nobody does it before a page
// has the row, or the messages go.
func (e *entry) compare() {
	if e.waits() {
		changes, _ := e.with.Diff(e.row.Call)
		e.row.Changes, e.compared = len(changes), true
	}
}

// strip forgets the messages and the metadata, except what the row needs.
func (e *entry) strip() {
	e.compare()
	for _, l := range e.row.Call.Legs {
		l.Metadata, l.Trailer = nil, nil
		for _, m := range []*calls.Messages{&l.Requests, &l.Replies} {
			m.Kept, m.Last = nil, calls.Message{}
		}
	}
	e.bytes = 0
}

// A place is where a reader is in a history.
type place struct {
	seq   uint64 // of the latest entry that it has
	ended uint64 // of that entry
}

func newHistory() *history {
	return &history{open: map[*calls.Call]uint64{}, changed: make(chan struct{})}
}

// follow sets the printer for the calls of another process, whose recording has a header.
func (h *history) follow(p *calls.Printer, header *capture.FileHeader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.printer = p
	h.story.Begin(header)
	h.news()
}

// update takes changes of conditions, and what is wrong with them: nil if that is not news.
func (h *history) update(changes []capture.Change, wrong []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		h.story.Change(c)
	}
	if wrong != nil {
		h.wrong = wrong
	}
	h.news()
}

// pods takes what criproxy says of all pods.
func (h *history) pods(all []admin.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.story.Pods(all, time.Now())
	h.news()
}

// take takes an event into the story.
func (h *history) take(ev *capture.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gaps := len(h.story.gaps)
	if h.story.Take(ev); len(h.story.gaps) != gaps {
		h.news()
	}
}

// news wakes the readers for what is new in the story.
func (h *history) news() {
	h.version++
	h.wake()
}

// nudge wakes the readers.
func (h *history) nudge() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wake()
}

// newer returns the story and what is wrong, as JSON and of one moment, with their version, if they have another one than have.
func (h *history) newer(have uint64) (story, wrong []byte, now uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if have == h.version {
		return nil, nil, have
	}
	return h.story.JSON(), h.wrong, h.version
}

// end notes that the process that was followed has gone: the ends of its calls will not be known.
func (h *history) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c, key := range h.open {
		h.append(Row{Key: key, Call: snapshot(c), Lost: true})
	}
	clear(h.open)
	h.wake()
}

// add adds a call that has ended.
func (h *history) add(c *calls.Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key, shown := h.open[c]
	if !shown {
		key = h.key()
	}
	delete(h.open, c)
	if h.story.Add(c) {
		h.version++
	}
	h.append(Row{Key: key, Call: c})
	if end := c.Began.Add(c.Took); end.After(h.latest) {
		h.latest = end
	}
	h.wake()
}

// underWay shows calls that have not ended yet.
func (h *history) underWay(calls []*calls.Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range calls {
		if _, shown := h.open[c]; !shown {
			h.open[c] = h.key()
			h.append(Row{Key: h.open[c], Call: snapshot(c)})
		}
	}
	if len(calls) > 0 {
		h.wake()
	}
}

// snapshot returns a copy of a call, which may change while browsers read it.
func snapshot(c *calls.Call) *calls.Call {
	now := *c
	now.Legs = make([]*calls.Leg, len(c.Legs))
	for i, l := range c.Legs {
		leg := *l
		now.Legs[i] = &leg
	}
	return &now
}

func (h *history) key() uint64 {
	h.next++
	return h.next
}

func (h *history) append(row Row) {
	e := entry{seq: 1, row: row, with: h.printer}
	if n := len(h.entries); n > 0 {
		e.seq = h.entries[n-1].seq + 1
	}
	if row.Call.Ended || row.Lost {
		h.ended++
	}
	e.ended = h.ended
	for _, l := range row.Call.Legs {
		e.bytes += around + l.Requests.Bytes + l.Replies.Bytes
	}
	h.entries = append(h.entries, e)
	h.bytes += e.bytes
	for h.bytes > maxBytes && h.bare < len(h.entries)-1 {
		h.bytes -= h.entries[h.bare].bytes
		h.entries[h.bare].strip()
		h.bare++
	}
	if gone := len(h.entries) - maxCalls; gone > 0 {
		for _, e := range h.entries[:gone] {
			h.bytes -= e.bytes
		}
		clear(h.entries[:gone])
		h.entries, h.bare = h.entries[gone:], max(h.bare-gone, 0)
	}
}

// wake wakes the waiting readers.
func (h *history) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// from returns the index of the first entry whose seq is not smaller.
func (h *history) from(seq uint64) int {
	i, _ := slices.BinarySearchFunc(h.entries, seq, func(e entry, want uint64) int { return int(int64(e.seq) - int64(want)) })
	return i
}

// since returns the rows of at most so many entries after a place, and the place after them. changed is closed when
// there are more, and nil if there are more already. If calls after the place are forgotten, the rows say how many.
func (h *history) since(at place, most int) (b Batch, last place, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, e := range h.entries[h.from(at.seq+1):] {
		if n == most {
			return b, at, nil
		}
		if e.waits() {
			e.row.Changes = unknown
		}
		b.Add(e.row)
		if n == 0 && e.seq > at.seq+1 {
			b.missing = e.ended - at.ended - 1
		}
		at = place{e.seq, e.ended}
	}
	return b, at, h.changed
}

// endedBetween returns the entries of calls that have ended, after a place and up to another one.
func (h *history) endedBetween(at, last place) (all []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries[h.from(at.seq+1):h.from(last.seq+1)] {
		if e.row.Call.Ended {
			all = append(all, e.seq)
		}
	}
	return all
}

// rewrites says how many fields were rewritten in each of some calls.
type rewrites struct {
	Keys    []uint64 `json:"k"`
	Changes []int    `json:"n"`
}

// rewritten finds out what was rewritten in entries, the last first, for some time. It returns the rest of them.
func (h *history) rewritten(entries []uint64, within time.Duration) (found rewrites, rest []uint64) {
	began := time.Now()
	for rest = entries; len(rest) > 0 && time.Since(began) < within; rest = rest[:len(rest)-1] {
		seq := rest[len(rest)-1]
		h.mu.Lock()
		if i := h.from(seq); i < len(h.entries) && h.entries[i].seq == seq { // else it is forgotten
			e := &h.entries[i]
			e.compare()
			found.Keys, found.Changes = append(found.Keys, e.row.Key), append(found.Changes, e.row.Changes)
		}
		h.mu.Unlock()
	}
	return found, rest
}

// opened returns the details of a call, unless the history has forgotten its messages.
func (h *history) opened(key uint64) (json.RawMessage, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range slices.Backward(h.entries[h.bare:]) {
		if e.row.Key == key {
			d, _ := Render(e.with, e.row.Call)
			return d, true
		}
	}
	return nil, false
}
