package replay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Config configures [Run]. All but Redact, Speed and Settle are required.
type Config struct {
	Calls []*Call
	Conn  grpc.ClientConnInterface

	// Schema describes the fields of messages. Messages that it does not describe are compared byte by byte, and Run
	// does not replace names in them.
	Schema *codec.Schema
	// Text prints values, and hides secret ones.
	Text dump.Text
	// Redact is the redactor with which the calls were recorded, nil if there was none. Run hides the same fields in
	// the replies that it gets.
	Redact *capture.Redactor
	// Given reports whether a field holds a name that the server has given. [LooksLikeID] guesses.
	Given func(protoreflect.FieldDescriptor) bool
	// Volatile reports whether a field differs in each run, as times do, and is not compared.
	Volatile func(protoreflect.FieldDescriptor) bool

	// Bare returns a name without the prefix of its backend, as it may stand in text that a
	// server sends; empty if the name has no prefix.
	Bare func(name string) string

	// Speed is how many times faster than recorded to play. With zero a call waits only for the
	// calls that had ended before it.
	Speed float64
	// Settle is how long Run waits for the messages that streams without an end brought in the recording, once all else is
	// done: a busy server is late with events. Zero means ten seconds.
	Settle time.Duration
	// Report is called with the result of each call, by one goroutine at a time.
	Report func(Result)
}

// Result is the result of one call.
type Result struct {
	Call    *Call
	Took    time.Duration
	NotSent string        // why the call was not sent; empty if it was
	Changes []dump.Change // differences from the recorded answer
}

// Summary counts results.
type Summary struct {
	Same, Different, NotSent int
	Redacted                 int // calls sent without the secrets that they had
	Left                     int // calls that were not sent because ctx had ended
	Unawaited                int // calls that were sent, and whose answers did not come before ctx ended
}

type run struct {
	Config
	ids    *ids
	calm   context.Context // ends when all calls are done except streams without an end
	ending context.Context // ends when those streams must end, too
	mu     sync.Mutex      // guards Report and sum
	sum    Summary
}

// subscribed is the time that a server has to begin a stream, because servers do not confirm it.
const subscribed = 50 * time.Millisecond

// Run plays calls in the order and with the timing of the recording: each call begins when all calls that had ended
// before it have ended again. Run returns when all calls have ended, with ctx's error if ctx ended them.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	calm, allElse := context.WithCancel(context.Background())
	defer allElse()
	ending, end := context.WithCancel(context.Background())
	defer end()
	r := &run{Config: cfg, ids: newIDs(cfg), calm: calm, ending: ending}
	r.Settle = cmp.Or(r.Settle, 10*time.Second)
	type begun struct {
		*Call
		over chan struct{}
	}
	var before []begun // calls that no later call has waited for yet
	var bounded, open sync.WaitGroup
	began := time.Now()
	left := 0
	for i, c := range cfg.Calls {
		before = slices.DeleteFunc(before, func(b begun) bool {
			if b.Finished >= c.Began {
				return false
			}
			select {
			case <-b.over:
			case <-ctx.Done():
			}
			return true
		})
		if cfg.Speed > 0 {
			sleep(ctx, time.Until(began.Add(time.Duration(float64(c.Began-cfg.Calls[0].Began)/cfg.Speed))))
		}
		if ctx.Err() != nil {
			left = len(cfg.Calls) - i
			break
		}
		group, over := &bounded, make(chan struct{})
		if c.open() {
			group = &open
		} else {
			before = append(before, begun{c, over})
		}
		group.Go(func() {
			defer close(over)
			r.play(ctx, c)
		})
		if c.open() {
			sleep(ctx, subscribed)
		}
	}
	bounded.Wait()
	allElse()
	settle := time.AfterFunc(r.Settle, end)
	defer settle.Stop()
	open.Wait()
	r.sum.Left = left
	return r.sum, ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// play sends a call and reports its result.
func (r *run) play(ctx context.Context, c *Call) {
	res := Result{Call: c, NotSent: c.Unfit()}
	if res.NotSent == "" {
		began := time.Now()
		got := r.send(ctx, c)
		res.Took = time.Since(began)
		if ctx.Err() != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sum.Unawaited++
			return
		}
		res.Changes = r.compare(c, got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case res.NotSent != "":
		r.sum.NotSent++
	case len(res.Changes) > 0:
		r.sum.Different++
	default:
		r.sum.Same++
	}
	if c.Redacted && res.NotSent == "" {
		r.sum.Redacted++
	}
	r.Report(res)
}

// Unfit returns why a call cannot be sent, and is empty if it can.
func (c *Call) Unfit() string {
	if c.Partial {
		return "it began before the capture did"
	}
	for _, m := range c.Requests {
		if m.Truncated {
			return "the end of its request was not recorded; record with a larger -flight-recorder"
		}
	}
	return ""
}
