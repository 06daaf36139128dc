package page

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/why"
)

const (
	again      = 300 * time.Millisecond // time between attempts to connect
	longEnough = 500 * time.Millisecond // a call that is under way for so long is shown before it ends
	keepBytes  = 256 << 10              // bytes of messages kept for each leg and direction
)

// A link is the state of the connection to criproxy. Its JSON is for the page.
type link struct {
	Up    bool   `json:"up"`
	PID   int    `json:"pid,omitempty"`
	Error string `json:"error,omitempty"`
}

// A follower reads the events of the admin socket into a history.
type follower struct {
	client  *admin.Client
	open    func(*capture.FileHeader) (*calls.Printer, *calls.Assembler, error)
	history *history
	info    atomic.Pointer[Info]
	link    atomic.Pointer[link]
	look    why.Look    // only the goroutine of run uses it
	wanted  atomic.Bool // a browser wants to know what is wrong

	session  string        // by which a page notices that another follower, or server, has taken the place of this one
	reach    uint64        // how many of the recorded events it reads, those that come later aside
	first    uint64        // number of the first event
	at       uint64        // number of the latest one
	caughtUp chan struct{} // closed when it has read what had been recorded when it began
	upTo     func()        // closes caughtUp, once
}

const (
	latest  = 40_000 // events, of about 5000 calls
	further = 4      // so many times further back a page reaches each time that it asks for older calls
)

func newFollower(cfg Config, title string, reach uint64) *follower {
	f := &follower{client: admin.NewClient(cfg.Admin), open: cfg.Open, history: newHistory(),
		session: rand.Text(), reach: reach, caughtUp: make(chan struct{})}
	f.upTo = sync.OnceFunc(func() { close(f.caughtUp) })
	f.link.Store(&link{Error: "connecting"})
	f.info.Store(&Info{Title: title})
	return f
}

// wrongFor is how far back the page finds what is wrong.
const wrongFor = time.Hour

// run follows one process after the other until ctx ends. A handover ends the connection; run then connects to the new
// process.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.once(ctx)
		f.history.end()
		ended := &link{Error: "criproxy has ended; waiting for the next one"}
		if err != nil {
			ended.Error = err.Error()
		}
		f.link.Store(ended)
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// once follows one process until it ends.
func (f *follower) once(ctx context.Context) error {
	var process admin.Version
	if _, err := f.client.Read(ctx, "version", &process); err != nil {
		return err
	}
	asks := fmt.Sprintf("/events?follow=true&last=%d", f.reach)
	if f.at > 0 {
		asks += fmt.Sprintf("&after=%d", f.at)
	}
	response, err := f.client.Get(ctx, asks)
	if err != nil {
		return err
	}
	defer response.Body.Close() // of a stream that was read to its end
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return fmt.Errorf("reading events: %w", err)
	}
	printer, assembler, err := f.open(r.Header())
	if err != nil {
		return err
	}
	info := *f.info.Load()
	info.Of(r.Header())
	info.describe(printer.Schema)
	f.info.Store(&info)
	f.history.follow(printer, r.Header())
	f.look.Follow(assembler)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := make(chan capture.Change)
	defer background(ctx, func(ctx context.Context) { f.changes(ctx, changes) })()
	f.link.Store(&link{Up: true, PID: process.PID})
	f.take(ctx, r, assembler, changes, admin.Number(response, admin.OldestHeader), admin.Number(response, admin.RecordedHeader))
	return nil
}

// changesFor is how far back the page knows what happened to the runtimes.
const changesFor = 7 * 24 * time.Hour

// changes reads what happened to the runtimes, also before the recording began, until ctx ends. A criproxy that does not
// have them is one that puts no changes into recordings either.
func (f *follower) changes(ctx context.Context, to chan<- capture.Change) {
	response, err := f.client.Get(ctx, "/changes?follow=true&since="+time.Now().Add(-changesFor).UTC().Format(time.RFC3339))
	if err != nil {
		return
	}
	defer response.Body.Close() // of a stream that was read to its end
	for lines := json.NewDecoder(response.Body); ; {
		var c capture.Change
		if lines.Decode(&c) != nil {
			return
		}
		select {
		case to <- c:
		case <-ctx.Done():
			return
		}
	}
}

// take reads events and changes until r ends. oldest and recorded are the numbers of the first and the last event that there
// was when it began.
func (f *follower) take(ctx context.Context, r *capture.Reader, a *calls.Assembler, changes <-chan capture.Change, oldest, recorded uint64) {
	a.KeepBytes, a.Lists = keepBytes, true
	before := f.history.latest // a process that has inherited a recording sends calls that are already here
	events := make(chan capture.Event)
	go func() {
		defer close(events)
		for {
			var ev capture.Event
			if r.Next(&ev) != nil {
				return
			}
			select {
			case events <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	tick := time.NewTicker(longEnough)
	defer tick.Stop()
	quiet, caughtUp := false, false // caughtUp: all that was recorded before has come
	var changed []capture.Change
	for {
		select {
		case c := <-changes:
			changed = append(changed, c)
		case ev, more := <-events:
			if !more {
				f.update(changed, time.Now(), caughtUp)
				return
			}
			quiet = false
			if f.first == 0 {
				f.first = ev.Seq
			}
			if ev.Kind == capture.Changed {
				changed = append(changed, *ev.Change)
				f.look.Take(&ev, nil, calls.Changed)
			} else {
				f.takeCall(&ev, a, before, oldest)
			}
			if f.at = ev.Seq; f.at >= recorded { // and the history has its call
				caughtUp = true
				f.upTo()
			}
		case now := <-tick.C:
			if quiet { // the latest numbers have no events
				caughtUp = true
				f.upTo()
			}
			quiet = true
			f.update(changed, now, caughtUp)
			changed = nil
			var long []*calls.Call
			for _, c := range a.UnderWay() {
				if now.Sub(c.Began) >= longEnough {
					long = append(long, c)
				}
			}
			f.history.underWay(long)
		}
	}
}

// takeCall takes an event of a call, unless the call ended at before or earlier. oldest is as in take.
func (f *follower) takeCall(ev *capture.Event, a *calls.Assembler, before time.Time, oldest uint64) {
	if f.info.Load().From == 0 {
		info := *f.info.Load()
		info.From, info.Older = unix(ev.Time), oldest > 0 && f.first > oldest
		f.info.Store(&info)
	}
	f.history.take(ev)
	c, what := a.Add(ev)
	if what == calls.Done && !c.Began.Add(c.Took).After(before) {
		return
	}
	f.look.Take(ev, c, what)
	if what == calls.Done {
		f.history.add(c)
	}
}

// update passes changes on together with what is wrong then, if a browser wants to know that: a page must not show the
// condition of a runtime beside what was wrong before.
func (f *follower) update(changed []capture.Change, now time.Time, find bool) {
	for i := range changed {
		f.look.AddChange(&changed[i])
	}
	var wrong []byte
	if find && (len(changed) > 0 || f.wanted.Swap(false)) {
		f.look.Forget(now.Add(-wrongFor))
		wrong = f.look.JSON()
	}
	if len(changed) > 0 || wrong != nil {
		f.history.update(changed, wrong)
	}
}
