package page

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
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
	changed chan struct{} // gets a value when the link changes
}

// run follows one process after the other until ctx ends. A handover ends the connection; run then connects to the new
// process.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.once(ctx)
		f.history.end()
		if err != nil {
			f.set(&link{Error: err.Error()})
		} else {
			f.set(&link{Error: "criproxy has ended; waiting for the next one"})
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

func (f *follower) set(l *link) {
	if old := f.link.Swap(l); *old != *l {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// once follows one process until it ends.
func (f *follower) once(ctx context.Context) error {
	var process admin.Version
	if _, err := f.client.Read(ctx, "version", &process); err != nil {
		return err
	}
	response, err := f.client.Get(ctx, "/events?follow=true")
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
	f.info.Store(&info)
	f.history.follow(printer, r.Header())
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		f.changes(ctx)
	}()
	defer func() { cancel(); <-told }()
	f.set(&link{Up: true, PID: process.PID})
	f.take(ctx, r, assembler)
	return nil
}

// changesFor is how far back the page knows what happened to the runtimes.
const changesFor = 7 * 24 * time.Hour

// changes reads what happened to the runtimes, also before the recording began, until ctx ends. A criproxy that does not
// tell is one that puts no changes into recordings either.
func (f *follower) changes(ctx context.Context) {
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
		f.history.change(c)
	}
}

// take reads events until r ends.
func (f *follower) take(ctx context.Context, r *capture.Reader, a *calls.Assembler) {
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
	for {
		select {
		case ev, more := <-events:
			if !more {
				return
			}
			f.history.take(&ev)
			if c, what := a.Add(&ev); what == calls.Done && c.Began.Add(c.Took).After(before) {
				f.history.add(c)
			}
		case now := <-tick.C:
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
