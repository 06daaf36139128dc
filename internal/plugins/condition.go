package plugins

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A condition says since when a plugin can be asked, or since when it cannot. It follows from the plugin's file and from
// the state of its connection, and is the same in [Plugins.State] and in the events.
type condition struct {
	ready bool
	since time.Time
}

// each calls do with the condition of each plugin that has a file: its state, and what is wrong. pl is nil if the file has
// never been valid. p.mu is held.
func (p *Plugins) each(do func(name, state string, err error, pl *plugin)) {
	loaded := map[string]*plugin{}
	for _, pl := range p.table.Load().plugins {
		loaded[pl.name] = pl
	}
	for _, name := range sortedKeys(p.folder.files) {
		mistake, pl := p.folder.files[name].err, loaded[name]
		if pl == nil {
			do(name, "broken", mistake, nil)
			continue
		}
		state, err := pl.conn.state()
		switch {
		case err == nil:
			err = mistake
		case mistake != nil:
			err = fmt.Errorf("%w; %w", err, mistake)
		}
		do(name, state, err, pl)
	}
}

// changed is called when a connection has another state.
func (p *Plugins) changed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge()
}

// judge reports the plugins whose condition has changed. p.mu is held.
func (p *Plugins) judge() {
	now := time.Now()
	change := func(name, state string, err error) {
		ready := state == "ready"
		was, known := p.conditions[name]
		if known && was.ready == ready {
			return // it goes on, perhaps for another reason
		}
		p.conditions[name] = condition{ready, now}
		if ready {
			err = nil // a mistake in its file has no effect
		}
		p.report(context.Background(), Changed{Plugin: name, State: state, Err: err, At: now, Since: was.since})
	}
	p.each(func(name, state string, err error, _ *plugin) {
		switch {
		case state == "connecting" || state == "broken" && err == nil: // nobody knows yet
		case state == "down" && p.folder.lacks(name): // it has left, which reload reports
		default:
			change(name, state, err)
		}
	})
	for _, name := range sortedKeys(p.conditions) {
		if p.folder.files[name] == nil {
			change(name, "removed", errors.New("its file is gone"))
		}
	}
}
