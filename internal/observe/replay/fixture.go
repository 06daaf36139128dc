package replay

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// FixtureConfig configures a [Fixture]. Only Calls is required.
type FixtureConfig struct {
	Calls []*Call
	// Schema is for comparing requests by their content. Requests that it does not describe are compared byte by byte.
	Schema *codec.Schema
	// Changes reports whether a method changes the state of the server. Nil means that all do.
	Changes func(method string) bool
	// Redact is the redactor with which requests were recorded, nil if there was none.
	Redact *capture.Redactor
	// Speed is how many times faster than the recorded server to answer. Zero answers at once.
	Speed float64
	// Report is called with each call when it has ended. Optional.
	Report func(Played)
}

// A Fixture is a server that answers as a recorded one did. It matches a call by method and request, and
// prefers recorded calls that it has not played yet. If no recorded request is equal, it takes the next
// recorded call of the method.
//
// Calls that change nothing may come more or less often than in the recording. They get the answers that
// were recorded between the latest change that was played and the next one. A change that failed is none. A Fixture is safe for
// concurrent use.
type Fixture struct {
	cfg   FixtureConfig
	calls []*recorded

	frontier *level[time.Duration] // when the first change began that was not made yet

	mu    sync.Mutex
	since time.Duration // when the latest ended of those that were made before
}

type recorded struct {
	*Call
	key     string // of its first request
	changes bool   // what others answer afterwards: not if it failed or is there in part, for then a replay may not repeat it
	played  bool
}

// Played says how a call was answered.
type Played struct {
	Method string
	Call   uint64 // the recorded one; zero if there is none
	Equal  bool   // its request says the same
	Code   codes.Code
}

// NewFixture returns a fixture.
func NewFixture(cfg FixtureConfig) *Fixture {
	if cfg.Changes == nil {
		cfg.Changes = func(string) bool { return true }
	}
	if cfg.Report == nil {
		cfg.Report = func(Played) {}
	}
	f := &Fixture{cfg: cfg, frontier: newLevel[time.Duration](-1)}
	for _, c := range cfg.Calls {
		one := &recorded{Call: c, changes: cfg.Changes(c.Method) && !c.open() && c.Code == codes.OK && c.Unfit() == ""}
		if len(c.Requests) > 0 {
			one.key = key(capture.MessageOf(cfg.Schema, c.Method, capture.Request), c.Requests[0].Payload)
		}
		f.calls = append(f.calls, one)
	}
	f.advance()
	return f
}

// Left returns the recorded calls that no client has made, in their order.
func (f *Fixture) Left() []*Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []*Call
	for _, c := range f.calls {
		if !c.played {
			left = append(left, c.Call)
		}
	}
	return left
}

// advance moves the frontier to the first change that was not made. The caller holds mu,
// or is the only one.
func (f *Fixture) advance() {
	next := time.Duration(math.MaxInt64)
	for _, c := range f.calls {
		if c.changes && !c.played {
			next = c.Began
			break
		}
	}
	for _, c := range f.calls {
		if c.changes && c.played && c.Finished <= next {
			f.since = max(f.since, c.Finished)
		}
	}
	f.frontier.raise(next)
}

// choose returns the recorded call that answers a request, nil if there is none.
func (f *Fixture) choose(method string, request []byte) (c *recorded, equal bool) {
	request = bytes.Clone(request)
	f.cfg.Redact.Message(method, capture.Request, request)
	k := key(capture.MessageOf(f.cfg.Schema, method, capture.Request), request)
	f.mu.Lock()
	defer f.mu.Unlock()
	var same, others []*recorded
	for _, one := range f.calls {
		switch {
		case one.Method != method:
		case one.key == k:
			same = append(same, one)
		default:
			others = append(others, one)
		}
	}
	if c, equal = f.among(same), true; c == nil {
		c, equal = f.among(others), false
	}
	if c == nil {
		return nil, false
	}
	c.played = true
	f.advance()
	return c, equal
}

// among chooses one of calls that would all do.
func (f *Fixture) among(calls []*recorded) *recorded {
	if len(calls) == 0 {
		return nil
	}
	fresh := slices.IndexFunc(calls, func(c *recorded) bool { return !c.played })
	last := calls[len(calls)-1]
	if f.cfg.Changes(calls[0].Method) || calls[0].open() {
		if fresh < 0 {
			return last // once more
		}
		return calls[fresh]
	}
	frontier, _ := f.frontier.now()
	for _, c := range calls { // those of now that were not played yet
		if !c.played && c.Began >= f.since && c.Began <= frontier {
			return c
		}
	}
	i, _ := slices.BinarySearchFunc(calls, frontier, func(c *recorded, at time.Duration) int {
		if c.Began <= at {
			return -1
		}
		return cmp.Compare(c.Began, at)
	})
	if i > 0 {
		return calls[i-1] // the latest
	}
	return calls[0] // of what will be: better than nothing
}
