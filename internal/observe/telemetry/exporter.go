package telemetry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Secured opens secured connections.
type Secured interface {
	credentials.TransportCredentials
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// An Exporter sends calls and changes of conditions to a store that accepts logs by OpenTelemetry's protocol, OTLP. It
// follows the recorder, so no call waits for it: exportselect.go decides which calls become records and which are only
// counted, exportrecord.go makes the records, exportqueue.go holds a bounded number of them, and exportsend.go sends them
// in batches. It has no goroutine while no store is configured. It is safe for concurrent use.
type Exporter struct {
	recording *Recording
	names     func() calls.Namer // that find out what calls are about
	times     times
	queue     queue
	counts    counters
	now       atomic.Pointer[settings] // nil while no store is configured

	mu     sync.Mutex // held to start and to stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
	before bool // calls were exported before
	ended  bool
}

// settings are the settings of one configuration. They are immutable.
type settings struct {
	config.Export
	filter  calls.Filter
	chosen  bool // by filter; otherwise by the default
	keep    int  // see [calls.Assembler]
	secured Secured
	changed chan struct{} // closed when these settings are no longer in use
}

// times are how long an exporter waits. Tests have others.
type times struct {
	count          time.Duration // until a record has the number of the calls that were only counted
	linger         time.Duration // until a batch is sent that could become larger
	attempt        time.Duration // for an answer
	pause, longest time.Duration // between attempts: the first, and the longest, because it doubles
	last           time.Duration // for the rest, at the end
}

// NewExporter returns an exporter of what r records, which does nothing yet. It is nil if nothing is recorded. names
// returns what finds out what calls are about, when a store is configured.
func NewExporter(r *Recording, names func() calls.Namer) *Exporter {
	if r.rec == nil {
		return nil
	}
	return &Exporter{recording: r, names: names, queue: queue{news: make(chan struct{}, 1)}, times: times{
		count: time.Minute, linger: 5 * time.Second, attempt: 10 * time.Second, pause: time.Second, longest: 30 * time.Second, last: 2 * time.Second,
	}}
}

func exportFilter(c *config.Export) calls.Filter {
	return calls.Filter{Method: c.Method, Backend: c.Backend, Client: c.Client, Status: c.Status, Namespace: c.Namespace, Slower: c.Slower}
}

// CheckExport returns the mistake in the filter of a configuration, or nil.
func CheckExport(c *config.Export) error {
	f := exportFilter(c)
	if err := f.Check(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	f = calls.Filter{Method: c.Quiet}
	if err := f.Check(); err != nil {
		return fmt.Errorf("export.quiet: %w", err)
	}
	return nil
}

// Configure applies a configuration, and begins or stops to send. Records that were not sent yet go to the new store.
// secured opens connections to an https URL. Nothing happens if e is nil.
func (e *Exporter) Configure(c config.Export, secured Secured) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.now.Load()
	if e.ended || was != nil && reflect.DeepEqual(was.Export, c) || was == nil && c.URL == "" {
		return
	}
	if c.URL == "" {
		e.stop(0)
		return
	}
	s := &settings{Export: c, filter: exportFilter(&c), secured: secured, keep: -1, changed: make(chan struct{})}
	s.chosen = s.filter != calls.Filter{}
	if c.Bodies && !e.recording.cfg.UnsafeRaw {
		s.keep = maxBody
	}
	e.now.Store(s)
	if was != nil {
		close(was.changed)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	follower, names := e.recording.rec.FollowOwn(), e.names()
	if e.before {
		follower = e.recording.rec.Follow(false)
	}
	e.before = true
	followed := make(chan struct{})
	e.wg.Go(func() {
		defer close(followed)
		recovery.Keep(ctx, "exporting calls", func() { e.follow(ctx, follower, names) })
	})
	e.wg.Go(func() { recovery.Keep(ctx, "sending calls", func() { e.send(ctx, followed) }) })
}

// Stop sends the rest of what was recorded, for up to two seconds, and ends. The caller must close the recorder first.
func (e *Exporter) Stop() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	e.stop(e.times.last)
}

// stop ends the goroutines, after the rest is sent or the time is over. e.mu is held.
func (e *Exporter) stop(rest time.Duration) {
	s := e.now.Load()
	if s == nil {
		return
	}
	if rest > 0 {
		defer time.AfterFunc(rest, e.cancel).Stop()
	} else {
		e.cancel()
	}
	e.wg.Wait()
	e.cancel()
	e.now.Store(nil)
	e.counts.lost(lostStopped, len(e.queue.take(math.MaxInt, math.MaxInt)), nil)
}

// follow makes records of what f reads, until the recorder is closed or ctx ends.
func (e *Exporter) follow(ctx context.Context, f *capture.Follower, names calls.Namer) {
	assembler := calls.NewAssembler(e.recording.Schema, names)
	assembler.Copy = true
	left := tally{}
	due := time.Now().Add(e.times.count)
	count := func() {
		left.records(e.put)
		due = time.Now().Add(e.times.count)
	}
	var ev capture.Event
	for {
		wait, cancel := context.WithDeadline(ctx, due)
		err := f.Next(wait, &ev)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			count()
			continue
		case err != nil:
			count()
			return
		}
		s := e.now.Load()
		assembler.KeepBytes = s.keep
		switch c, what := assembler.Add(&ev); {
		case what == calls.Changed:
			e.put(changeRecord(ev.Change))
		case what == calls.Done && !c.Own && s.sends(c, e.recording.profile):
			e.put(e.callRecord(c, s.keep > 0))
		case what == calls.Done && !c.Own:
			left.add(c, e.recording.Schema)
		}
		if !time.Now().Before(due) {
			count()
		}
	}
}

func (e *Exporter) put(r *logs.LogRecord) {
	if dropped := e.queue.put(r); dropped > 0 {
		e.counts.lost(lostFull, dropped, nil)
	}
}

// State returns what was sent, or nil while no store is configured.
func (e *Exporter) State() *admin.Export {
	if e == nil || e.now.Load() == nil {
		return nil
	}
	s := e.now.Load()
	state := e.counts.state()
	state.URL, state.Queued = s.URL, e.queue.len()
	return &state
}
